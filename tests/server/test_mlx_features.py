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
                for each in sets_features()
                if each.name in (patch.proven_with or {}) and switches & {*each.arguments()}
            }
            assert declared <= on[patch.id], (patch.id, declared - on[patch.id])
