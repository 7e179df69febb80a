"""What becomes of each patch in each recipe: the release resolves it, as in ``doctor``."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import released
from sglang_perf_patches import sets, verified
from sglang_perf_patches.cli import verbs
from sglang_perf_patches.cli.ask import gpus
from sglang_perf_patches.cli.verbs import asking
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.feature import Setup
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.model.selection import Selection
from sglang_perf_patches.patch_page import ONE, WORDS

from .commands import DRAFT, RECIPES, Recipe
from .models import MODELS

RELEASE = releases.KNOWN[-1]
PATCHES = by_id(sets.load())
GAINS = frozenset(
    patch.id for patch in PATCHES.values() if patch.worth is not None and patch.worth.rule == "a"
)
"""Patches on by default with a measured gain."""
COUNTED = ("mamba.gdn-prefill-graph", "mamba.slot-exhaustion")
"""Patches with a line of their own in the summary."""
TABLE = Path(__file__).with_name("table.md")

_RESOLVE = Path(__file__).parents[1] / "resolve.py"
_ROW = re.compile(r"\| `(?P<name>[\w.-]+)` \|(?P<cells>.*)\|")
_HEAD = """# Which patches act in the commands that people run

`python3 -m tests.maintain.recipes` writes this page from `commands.py`, as sglang {release}
resolves each command; `tests/releases/test_recipes.py` fails if a recipe loses a patch. A patch is
listed if the code that it changes would run there. "Gated" names the features that it was not
tested with. Opt-in patches are left out.

{summary}

| recipe | where it is from | runs on | live | gated |
| --- | --- | --- | --- | --- |
"""


class Outcome(NamedTuple):
    """What becomes of the patches in a recipe."""

    live: frozenset[str]
    gated: Mapping[str, tuple[str, ...]]  # patches that would act → the features that keep them off
    uses: tuple[str, ...]  # the short names of what the server has on
    with_records: frozenset[str]  # live if `verify` has kept a record of each on that GPU
    states: Mapping[str, str]  # of all patches that apply on the release, opt-in ones too
    on: frozenset[str]
    arguments: Mapping[str, str]  # the resolved ones, each as its ``repr``


def ask(folder: Path) -> dict[str, Outcome]:
    """The outcome of every recipe, by name; the folder gets the models' configurations."""
    write_models(folder)
    verdicts = verbs.judged(verbs.tree_at(version=RELEASE))
    everything = Selection("all", tuple(PATCHES), frozenset(), frozenset())
    found = {}
    for recipe, line in _resolved(folder):
        assert "setup" in line, (recipe.name, line)
        on, lacking, having = line["setup"]
        setup = Setup(on, lacking, frozenset(having))
        states = _states(everything, verdicts, setup)
        with mock.patch.object(verified, "is_proving", True):  # as if each had its record
            proven = _states(everything, verdicts, setup, is_here=True)
        defaults = {patch: state for patch, state in states.items() if PATCHES[patch].is_default}
        found[recipe.name] = Outcome(
            frozenset(patch for patch, state in defaults.items() if state == asking.LIVE),
            {patch: _missing(patch, on) for patch, state in defaults.items() if state == "gated"},
            tuple(word for word, feature in WORDS.items() if feature in on),
            frozenset(patch for patch in defaults if proven[patch] == asking.LIVE),
            {one.patch.id: states[one.patch.id] for one in verdicts if one.word == "applies"},
            frozenset(on),
            line["arguments"],
        )
    return {recipe.name: found[recipe.name] for recipe in RECIPES}


def _states(everything: Selection, verdicts: Any, setup: Setup, **here: bool) -> dict[str, str]:
    return {fate.patch: fate.state for fate in asking.outlooks(everything, verdicts, setup, **here)}


def write_models(folder: Path) -> None:
    for name, config in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))


def resolved(
    place: released.Place,
    servers: Sequence[tuple[str | None, Sequence[str | Path]]],
    release: str = RELEASE,
    **variables: str,
) -> list[dict[str, Any]]:
    """What `resolve` prints about servers: a GPU, None on a Mac, and arguments of each."""
    given = [
        (asdict(gpus.KINDS[gpu]) if gpu else None, [str(word) for word in words])
        for gpu, words in servers
    ]
    words = (str(_RESOLVE), "minimal", release)
    out = released.run(place, *words, given=json.dumps(given), HF_HUB_OFFLINE="1", **variables)
    return [json.loads(line) for line in out.splitlines()]


def page(outcomes: Mapping[str, Outcome]) -> str:
    lines = []
    for recipe in RECIPES:
        outcome = outcomes[recipe.name]
        gated = "; ".join(
            f"`{patch}` by {', '.join(features)}" for patch, features in outcome.gated.items()
        )
        live = " ".join(f"`{patch}`" for patch in PATCHES if patch in outcome.live)
        cells = [f"`{recipe.name}`", recipe.source, ", ".join(outcome.uses) or ONE, live, gated]
        lines.append(f"| {' | '.join(cells)} |\n")
    return _HEAD.format(release=RELEASE, summary="\n".join(summary(outcomes))) + "".join(lines)


def summary(outcomes: Mapping[str, Outcome]) -> list[str]:
    def line(what: str, patches: frozenset[str]) -> str:
        live = sum(bool(outcome.live & patches) for outcome in outcomes.values())
        proven = sum(bool(outcome.with_records & patches) for outcome in outcomes.values())
        more = f" ({proven} with records of `verify`)" if proven > live else ""
        would = sum(bool((each.live | set(each.gated)) & patches) for each in outcomes.values())
        return f"- {what}: live in {live}{more} of the {would} recipes where it would act"

    return [
        line(
            f"A patch with a measured gain ({', '.join(f'`{id}`' for id in sorted(GAINS))})", GAINS
        ),
        *(line(f"`{patch}`", frozenset({patch})) for patch in COUNTED),
    ]


def expected() -> dict[str, frozenset[str]]:
    """Recipe → patches that are live, as `TABLE` says."""
    rows = [found for line in TABLE.read_text("utf-8").splitlines() if (found := _ROW.match(line))]
    return {
        row["name"]: frozenset(re.findall(r"`([\w.-]+)`", row["cells"].split(" | ")[2]))
        for row in rows
    }


def _missing(patch: str, on: Mapping[str, str]) -> tuple[str, ...]:
    needed = [PATCHES[each] for each in (patch, *PATCHES[patch].requires)]
    return tuple(
        feature for feature in on if any(feature not in (each.proven_with or {}) for each in needed)
    )


def _resolved(folder: Path) -> Iterator[tuple[Recipe, dict[str, Any]]]:
    """What the release makes of each command: one process for CUDA, one for ROCm, one for MLX."""
    for kind in ("CUDA", "ROCm", "MLX"):
        recipes = [recipe for recipe in RECIPES if _kind(recipe) == kind]
        servers = []
        for recipe in recipes:
            words = shlex.split(recipe.flags.replace(DRAFT, str(folder / "draft")))
            if kind == "MLX":  # no Mac is here
                words += ["--device", "cpu"]
            gpu = None if kind == "MLX" else recipe.gpu
            servers.append((gpu, ["--model-path", folder / recipe.model, *words]))
        place = released.slim(RELEASE) if kind == "MLX" else released.tree(RELEASE)
        yield from zip(recipes, resolved(place, servers), strict=True)


def _kind(recipe: Recipe) -> str:
    gpu = gpus.KINDS.get(recipe.gpu)
    return "MLX" if gpu is None else "ROCm" if gpu.rocm else "CUDA"
