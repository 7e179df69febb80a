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
from tests.releases.markdown import rows
from tests.releases.recipes.commands import RECIPES
from tests.releases.recipes.models import MODELS as OF_RECIPES
from tests.releases.recipes.outcomes import resolved

NEWEST = releases.KNOWN[-1]
MLX = "MLX"
DRAFTS = "--speculative-num-steps 3 --speculative-num-draft-tokens 4 --speculative-eagle-topk"
EAGLE = f"--speculative-algorithm EAGLE --speculative-draft-model-path plain {DRAFTS}"
ON_A_GPU = "on a GPU"


class Example(NamedTuple):
    """A row of ``faults.md``: a server of `release` with a fault, and a `good` one without."""

    release: str
    gpu: str
    bad: str
    good: str
    is_sure: bool
    refused: bool


_SHORT = {
    "EAGLE": f"{EAGLE} 1",
    "TREES": f"{EAGLE} 2",
    "NEXTN": f"--speculative-algorithm NEXTN {DRAFTS} 1",  # the model drafts by itself
    "NGRAM": "--speculative-algorithm NGRAM",
    "DFLASH": "--speculative-algorithm DFLASH --speculative-draft-model-path plain",
    "DECODE": "--disaggregation-mode decode",
    "TRACKED": "--mamba-radix-cache-strategy extra_buffer",
    "RANKS": "--tp-size 8 --enable-dp-attention --dp-size",
    "NEWEST": NEWEST,
}
EXAMPLES = {
    name: Example(*about, is_sure="unsure" not in remarks, refused="refused" in remarks)
    for name, *about, remarks in rows("faults.md", **_SHORT)
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
