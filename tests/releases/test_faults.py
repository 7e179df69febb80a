"""Known faults: each condition is read from servers' arguments as the releases resolve them."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import released
from configurations import MODELS, write
from sglang_perf_patches.cli.ask import resolver
from sglang_perf_patches.faults.known import FAULTS
from sglang_perf_patches.model import releases
from tests.releases.recipes.commands import RECIPES
from tests.releases.recipes.models import MODELS as OF_RECIPES
from tests.releases.recipes.outcomes import resolved

NEWEST = releases.KNOWN[-1]
MLX = "MLX"
TRACKED = "--mamba-radix-cache-strategy extra_buffer"
DRAFTS = "--speculative-num-steps 3 --speculative-num-draft-tokens 4 --speculative-eagle-topk"
EAGLE = f"--speculative-algorithm EAGLE --speculative-draft-model-path plain {DRAFTS} 1"
TREES = f"--speculative-algorithm EAGLE --speculative-draft-model-path plain {DRAFTS} 2"
NGRAM = "--speculative-algorithm NGRAM"
DFLASH = "--speculative-algorithm DFLASH --speculative-draft-model-path plain"
DECODE = "--disaggregation-mode decode"
NEXTN = f"--speculative-algorithm NEXTN {DRAFTS} 1"
"""Of GLM, and of hybrid models: the model drafts by itself."""
RANKS = "--tp-size 8 --enable-dp-attention --dp-size"
ON_A_GPU = "on a GPU"


class Example(NamedTuple):
    """A server of `release` with a fault, and a `good` one that differs in one thing.

    `is_sure`: whether the arguments tell it. `refused`: whether the release refuses the bad one.
    """

    release: str
    bad: str
    good: str
    gpu: str = "H100"
    is_sure: bool = True
    refused: bool = False


EXAMPLES = {
    "mixed-chunks-states": Example(
        "0.5.17", f"next {TRACKED} --enable-mixed-chunk", f"next {TRACKED}"
    ),
    "mamba2-states": Example("0.5.17", f"falcon {TRACKED}", f"next {TRACKED}"),
    "mamba2-cached-prefix": Example("0.5.14", f"falcon {TRACKED}", f"next {TRACKED}"),
    "lightning-states": Example(
        "0.5.14",
        f"ling {TRACKED}",
        "ling --mamba-radix-cache-strategy no_buffer --disable-overlap-schedule",
    ),
    "ngram-states": Example(
        "0.5.12.post1", f"next {NGRAM} --disable-radix-cache", f"plain {NGRAM}"
    ),
    "freed-row-death": Example(
        "0.5.15.post1",
        f"next {NEXTN} {TRACKED}",
        f"next {NEXTN} {TRACKED} --disable-overlap-schedule",
    ),
    "freed-row-states": Example("0.5.16", f"next {NEXTN} {TRACKED}", f"next {TRACKED}"),
    "freed-row-ngram": Example("0.5.21", f"next {NGRAM} {TRACKED}", f"next {NEXTN} {TRACKED}"),
    "state-slots": Example(NEWEST, "next", "next --disable-radix-cache"),
    "refused-speculation": Example(
        "0.5.10.post1",
        f"next {DECODE} {EAGLE}",
        f"next {DECODE} {EAGLE} --disable-radix-cache",
        refused=True,
    ),
    "retracted-states": Example("0.5.10.post1", f"next {DECODE}", "next"),
    "pinned-load-back": Example(
        "0.5.18",
        "windows --enable-hierarchical-cache --hicache-write-policy write_back",
        "windows --enable-hierarchical-cache --hicache-write-policy write_through",
    ),
    "refused-load-back": Example(NEWEST, "next --enable-hierarchical-cache", "next"),
    "page-table-bound": Example(
        NEWEST,
        f"plain {EAGLE} --attention-backend fa3",
        f"plain {EAGLE} --attention-backend triton",
    ),
    "trtllm-mla-chunks": Example(
        "0.5.10.post1",
        "latent --attention-backend trtllm_mla",
        "latent --attention-backend trtllm_mla --disable-chunked-prefix-cache",
        gpu="B200",
    ),
    "retracted-dsa": Example("0.5.13.post1", f"sparse {DECODE}", "sparse"),
    "glm-stale-seeds": Example("0.5.15", f"glm {DECODE} {NEXTN}", f"glm {DECODE}", is_sure=False),
    "glm-graph-votes": Example(
        "0.5.20",
        f"glm {DECODE} {NEXTN} {RANKS} 8",
        f"glm {DECODE} {NEXTN} --tp-size 8",
        is_sure=False,
    ),
    "glm-attention-ranks": Example(
        NEWEST, f"glm {NEXTN} {RANKS} 2", f"glm {NEXTN} {RANKS} 8", is_sure=False
    ),
    "control-broadcast": Example(
        NEWEST, f"glm {RANKS} 8", f"glm {RANKS} 8 --enable-dp-attention-local-control-broadcast"
    ),
    "dflash-windows": Example("0.5.17", f"windows {DFLASH}", f"plain {DFLASH}"),
    "tree-windows": Example(
        "0.5.11",
        f"windows {TREES} --attention-backend fa3",
        f"windows {EAGLE} --attention-backend fa3",
    ),
    "flashinfer-eagle-windows": Example(
        "0.5.13.post1",
        f"gemma {EAGLE} --attention-backend flashinfer",
        f"plain {EAGLE} --attention-backend flashinfer",
    ),
    "flashinfer-verify-windows": Example(
        NEWEST,
        f"gemma {EAGLE} --attention-backend flashinfer",
        f"gemma {EAGLE} --attention-backend triton",
    ),
    "window-tail-mapping": Example(
        "0.5.12", f"windows {DECODE} --page-size 64", f"windows {DECODE} --page-size 1"
    ),
    "prefill-window-cap": Example(
        "0.5.12.post1",
        "windows --disaggregation-mode prefill",
        "plain --disaggregation-mode prefill",
    ),
    "idle-admission": Example(NEWEST, f"windows {DECODE}", f"plain {DECODE}", is_sure=False),
    "mlx-quantised": Example(NEWEST, "quantised", "plain", gpu=MLX, is_sure=False, refused=True),
    "mlx-sampling": Example(NEWEST, "plain", "plain --mlx-enable-sampling", gpu=MLX),
    "mlx-penalties": Example(NEWEST, "plain --mlx-enable-sampling", "plain", gpu=MLX),
    "mlx-logprobs": Example(NEWEST, "plain", "plain --mlx-enable-sampling", gpu=MLX),
    "mlx-retracted-logprobs": Example(NEWEST, "plain --mlx-enable-sampling", "plain", gpu=MLX),
    "mlx-pages": Example(NEWEST, "plain --page-size 16", "plain --page-size 1", gpu=MLX),
    "mlx-max-running": Example("0.5.16", "plain --max-running-requests 4", "plain", gpu=MLX),
    "mlx-rows": Example("0.5.20", "plain", "plain --disable-radix-cache", gpu=MLX, is_sure=False),
    "mlx-capacity": Example("0.5.21", "plain", ON_A_GPU, gpu=MLX),
    "mlx-buffer-end": Example("0.5.14", "plain", ON_A_GPU, gpu=MLX),
    "mlx-windows": Example("0.5.17", "gemma", "plain", gpu=MLX),
    "mlx-hybrid-defaults": Example(
        NEWEST, "next", "next --disable-radix-cache", gpu=MLX, refused=True
    ),
    "mlx-hybrid-boot": Example("0.5.17", "next --disable-radix-cache", "plain", gpu=MLX),
    "mlx-hybrids": Example(
        NEWEST,
        "next --mamba-radix-cache-strategy no_buffer --disable-overlap-schedule",
        "next --disable-radix-cache",
        gpu=MLX,
    ),
    "mlx-relay-device": Example(NEWEST, "plain --disable-overlap-schedule", "plain", gpu=MLX),
    "mlx-pool-memory": Example(NEWEST, "plain", "plain --disable-radix-cache", gpu=MLX),
}
OF_RELEASE = {
    release: [name for name, each in EXAMPLES.items() if each.release == release]
    for release in releases.KNOWN
}


def test_each_fault_has_an_example_on_a_release_that_has_it() -> None:
    assert list(EXAMPLES) == [fault.name for fault in FAULTS]
    for fault in FAULTS:
        assert EXAMPLES[fault.name].release in releases.from_spans(fault.releases)
        assert EXAMPLES[fault.name].is_sure == fault.is_sure
        # A fault that a new release still has fails here until its span names that release.
        assert (EXAMPLES[fault.name].release == NEWEST) == (not fault.fixed_in)


def asked(release: str, folder: Path, servers: Sequence[tuple[str, str]]) -> list[Any]:
    """What `resolve` prints about servers of a release: model and arguments, and their GPU."""
    answers: dict[int, Any] = {}
    for is_mlx in (False, True):
        given = {}
        for at, (line, gpu) in enumerate(servers):
            if (gpu == MLX) is is_mlx:
                model, *words = (
                    str(write(folder, word)) if word in MODELS else word for word in line.split()
                )
                device = ["--device", "mps"] if is_mlx else []
                given[at] = None if is_mlx else gpu, ["--model-path", model, *device, *words]
        if given:
            stock = {"SGLANG_USE_MLX": str(int(is_mlx)), "SGLANG_PERF_PATCHES": "none"}
            found = resolved(released.tree(release), [*given.values()], release, **stock)
            answers |= dict(zip(given, found, strict=True))
    return [answers[at] for at in range(len(servers))]


@pytest.mark.whole_matrix  # two servers for each fault are resolved
@pytest.mark.parametrize("release", [release for release, names in OF_RELEASE.items() if names])
def test_a_server_is_warned_if_it_has_a_fault(release: str, tmp_path: Path) -> None:
    examples = [(name, EXAMPLES[name]) for name in OF_RELEASE[release]]
    servers = [
        ("plain", "H100") if line == ON_A_GPU else (line, each.gpu)
        for _, each in examples
        for line in (each.bad, each.good)
    ]
    answers = asked(release, tmp_path, servers)
    for at, (name, each) in enumerate(examples):
        bad, good = answers[2 * at : 2 * at + 2]
        if each.refused:
            told = bad.get("failed") or bad["refused"]
            known = resolver.fault_of(release, told, bad["faults"])
            assert known is not None, bad
            assert known.name == name
        else:
            assert bad.get("faults", {}).get(name) is each.is_sure, (name, bad)
        assert name not in good["faults"], (name, good)


@pytest.mark.whole_matrix
@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.5.9", {"mimo-pre": {"prefill-window-cap"}}),
        ("0.5.12.post1", {"q35-4b-user": {"state-slots"}}),
        (
            "0.5.14",
            {
                "nemo-super-h200": {"mamba2-states", "mamba2-cached-prefix", "state-slots"},
                "q35-397-fp8-ix": set(),
            },
        ),
        (
            "0.5.17",
            {
                "nemo-super-h200": {"mamba2-states", "state-slots"},
                "oss-120-dyn-dec": {"idle-admission"},
            },
        ),
    ],
)
def test_recipes_are_warned(release: str, expected: dict[str, set[str]], tmp_path: Path) -> None:
    recipes = {recipe.name: recipe for recipe in RECIPES}
    given = []
    for recipe in (recipes[name] for name in expected):
        folder = tmp_path / recipe.model
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(OF_RECIPES[recipe.model]))
        given.append((recipe.gpu, ["--model-path", folder, *shlex.split(recipe.flags)]))
    answers = resolved(released.tree(release), given, release, SGLANG_USE_MLX="0")
    found = {name: set(answer["faults"]) for name, answer in zip(expected, answers, strict=True)}
    assert found == expected
