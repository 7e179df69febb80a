"""Servers with each feature that an mlx patch declares: it is on, and the replies are stock's."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest

from arguments import arguments as known_to
from linux_mlx.completions import complete, workload
from linux_mlx.patches import live_and_run
from linux_mlx.server import running_server
from matrix import applying
from sglang_perf_patches import sets
from sglang_perf_patches.model.setups import FEATURES
from tests.server.test_mlx_hybrid import POLICIES, prepared

pytestmark = [
    pytest.mark.skipif("sys.platform != 'linux'", reason="the shims are for Linux"),
    pytest.mark.whole_matrix,  # two servers each
]

REQUESTS = workload(6)
SERVERS = (
    ("dense", "--disable-overlap-schedule --chunked-prefill-size -1 --disable-radix-cache"),
    (
        "dense",
        "--mlx-enable-sampling --enable-priority-scheduling --enable-forward-pass-metrics "
        "--retraction-policy priority --kv-cache-dtype fp8_e4m3",
    ),
    ("dense", "--quantization mlx_q4"),
    ("dense", "--dp-size 2"),
    ("qwen3.5", "--disable-overlap-schedule --chunked-prefill-size -1 --disable-radix-cache"),
    (
        "qwen3.5",
        "--mlx-enable-sampling --enable-priority-scheduling --enable-forward-pass-metrics "
        "--retraction-policy priority --kv-cache-dtype fp8_e4m3",
    ),
    ("qwen3.5", "--enable-mixed-chunk --chunked-prefill-size 64"),
    ("qwen3.5", "--dp-size 2"),
)
"""Kinds of models, and flags; a hybrid is only compared where stock serves it."""


@pytest.mark.parametrize("release", ["0.5.20", "0.5.23"])
def test_what_is_declared_is_on_and_replies_are_stocks(release: str, tmp_path: Path) -> None:
    on: dict[str, set[str]] = defaultdict(set)
    for number, (kind, flags) in enumerate(SERVERS):
        folder = tmp_path / str(number)
        folder.mkdir()
        given = _known(release, flags)
        replies, log = _served(release, folder, kind, POLICIES, given)
        for line in log.splitlines():
            if line.startswith("noted: "):
                patch, *features = line.removeprefix("noted: ").split()
                on[patch].update(features)
        if kind == "dense" or "--disable-radix-cache" in given:
            assert replies == _served(release, folder, kind, "none", given)[0], given
    for patch in sets.declared("mlx").patches:
        if patch.id in applying("mlx", release):
            switches = known_to(release) | {"is_cpu", "model.is_multimodal"}
            declared = {
                each.name
                for each in FEATURES.all
                if each.name in (patch.proven_with or {}) and switches & {*each.arguments()}
            }
            assert declared <= on[patch.id], (patch.id, declared - on[patch.id])


def _known(release: str, flags: str) -> list[str]:
    """The flags that a release has, with their values."""
    given: list[str] = []
    for word in flags.split():
        if word.startswith("--"):
            is_known = word.removeprefix("--").replace("-", "_") in known_to(release)
        if is_known:
            given.append(word)
    return given


def _served(
    release: str, folder: Path, kind: str, selection: str, flags: list[str]
) -> tuple[list[str], str]:
    """A server's replies, and its log."""
    environment, model = prepared(release, folder, kind)
    plugin = folder / "noting_probe-1.dist-info"
    plugin.mkdir(exist_ok=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: noting-probe\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text("[sglang.srt.plugins]\nprobe = noting_probe:load\n")
    core = sorted(os.sched_getaffinity(0))[0]
    with running_server(
        environment,
        model,
        selection=selection,
        log=folder / f"{selection}.log",
        arguments=flags,
        # Stock asks for the cores of each rank where there are more ranks than memory nodes.
        settings={"SGLANG_CPU_OMP_THREADS_BIND": f"{core}|{core}"} if "--dp-size" in flags else {},
        python_path=(folder, Path(__file__).parent),
    ) as server:
        replies = complete(server.url, REQUESTS)
        assert bool(live_and_run(server, patience_s=15)) == (selection != "none")
        return replies, server.log.read_text(errors="replace")
