"""Each feature that an mlx patch declares is on in a real server, whose replies are stock's."""

import os
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from random import Random

import pytest

from arguments import arguments
from feature_examples import example
from linux_mlx.completions import post
from linux_mlx.patches import live_and_run
from linux_mlx.server import Server
from matrix import applying, before
from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import Patch
from sglang_perf_patches.model.setups import FEATURES
from tests.server.test_mlx_hybrid import DEFAULTS, POLICIES, Asked, body, prepared, serving, words

NAME = "tests/server/test_mlx_features.py"
"""The check that the patches name."""
REQUESTS = [
    Asked(words(Random(number % 2), 70) + words(Random(number), 20 * number + 1), 40 + 5 * number)
    for number in range(6)
]
FEATURE = {each.name: each for each in FEATURES.all}
GIVEN = {"quantised-weights": {"quantization": "mlx_q4"}, "multimodal": {}}
"""Arguments that switch a feature on for MLX; the model itself takes images."""
UNREAD = "priorities other-retraction forward-metrics quantised-kv"
"""Features of which MLX's backend reads no argument."""
EACH = f"no-cuda-graphs {UNREAD} mlx-sampling no-overlap"
SERVERS = {
    "dense": ("dense", f"{EACH} quantised-weights whole-prefills"),
    "dense, replicas": ("dense", "quantised-weights data-parallel no-radix-cache"),
    "hybrid": ("qwen3.5", f"{EACH} quantised-weights mixed-chunks multimodal"),
    "hybrid, replicas": (
        "qwen3.5",
        "quantised-weights data-parallel no-overlap whole-prefills multimodal",
    ),
    "hybrid, no cache": ("qwen3.5", "quantised-weights no-overlap no-radix-cache multimodal"),
    "windows": ("windows", f"{EACH} whole-prefills"),
}
"""Name → kind of model, and the features that are on. One stock server answers for all of a kind,
so all have quantised weights or none."""
HYBRIDS = {"mlx.hybrid-cache", "mlx.hybrid-defaults"}


def plays(patch: Patch, name: str) -> set[str]:
    """The features with which a server plays a patch; none if it gates or does not need it."""
    kind, words = SERVERS[name]
    features = set(words.split())
    needed = "windows" if "windows" in patch.only_with else "qwen3.5" if patch.id in HYBRIDS else ""
    is_gated = not features <= {*(patch.proven_with or {})}
    is_cached = "prefix-cache" in patch.only_with and "no-radix-cache" in features
    if is_gated or is_cached or (kind != needed if needed else kind == "windows"):
        return set()
    return features


def played(patch: Patch) -> set[str]:
    """The features with which any server plays a patch."""
    return set().union(*(plays(patch, name) for name in SERVERS))


@pytest.fixture(scope="module")
def stocks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], list[tuple[int, ...]]]:
    """``stocks(release, kind)``: the replies of stock, in the way in which it serves such models.

    Before 0.5.19 it serves no hybrid, so the patches that make it start are on.
    """

    @cache
    def ask(release: str, kind: str) -> list[tuple[int, ...]]:
        folder = tmp_path_factory.mktemp("stock")
        environment, model = prepared(release, folder, kind)
        flags = _given(release, "quantised-weights") if kind != "windows" else []
        is_hybrid = kind == "qwen3.5"
        flags += ["--disable-radix-cache"] * is_hybrid
        selection = DEFAULTS if is_hybrid and before(release, "0.5.19") else "none"
        with serving(environment, model, selection, folder, *flags) as server:
            return _replies(server)

    return ask


@pytest.mark.skipif("sys.platform != 'linux'", reason="the shims are for Linux")
@pytest.mark.whole_matrix  # two servers each
@pytest.mark.parametrize("release", ["0.5.17", "0.5.23"])
@pytest.mark.parametrize("name", SERVERS)
def test_what_is_declared_is_on_and_replies_are_stocks(
    release: str, name: str, stocks: Callable[[str, str], list[tuple[int, ...]]], tmp_path: Path
) -> None:
    kind, words = SERVERS[name]
    there = {each for each in words.split() if each == "multimodal" or _given(release, each)}
    patches = {
        patch.id: plays(patch, name) & there
        for patch in sets.declared("mlx").patches
        if patch.id in applying("mlx", release) and plays(patch, name)
    }
    if not patches:
        pytest.skip("no patch needs this server")
    flags = [word for each in sorted(there) for word in _given(release, each)]
    environment, model = prepared(release, tmp_path, kind)
    core = min(os.sched_getaffinity(0))
    # Stock asks for the cores of each rank where there are more ranks than memory nodes; before,
    # only those of one replica count.
    ranks = 1 if before(release, "0.5.19") else 2
    cores = "|".join([str(core)] * ranks)
    settings = {"SGLANG_CPU_OMP_THREADS_BIND": cores} if "--dp-size" in flags else {}
    with serving(environment, model, POLICIES, tmp_path, *flags, **settings) as server:
        replies = _replies(server)
        ran = set(live_and_run(server, patience_s=15))
        log = server.log.read_text(errors="replace")
    on: dict[str, set[str]] = defaultdict(set)
    for line in log.splitlines():
        if line.startswith("noted: "):
            patch, *features = line.split()[1:]
            on[patch].update(features)
    missing = {patch: declared - on[patch] for patch, declared in patches.items()}
    assert not any(missing.values()), missing
    assert ran & {*patches}, ran
    assert replies == stocks(release, kind)


def _replies(server: Server) -> list[tuple[int, ...]]:
    """The replies to requests that are sent at once, and to the next turn of each."""

    def ask(asked: Asked) -> tuple[int, ...]:
        return tuple(post(server.url, "/generate", body(asked))["output_ids"])

    with ThreadPoolExecutor(len(REQUESTS)) as executor:
        first = list(executor.map(ask, REQUESTS))
        turns = [
            Asked(asked.tokens + reply + (7, 8, 9), asked.count)
            for asked, reply in zip(REQUESTS, first, strict=True)
        ]
        return first + list(executor.map(ask, turns))


def _given(release: str, feature: str) -> list[str]:
    """The words that switch a feature on; none if the release has no such argument."""
    words: list[str] = []
    for name, value in GIVEN.get(feature, example(FEATURE[feature])).items():
        if name not in arguments(release):
            return []
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words
