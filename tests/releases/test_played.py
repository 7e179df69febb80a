"""Each feature that a patch declares is on in the process that plays the check which it names.

What is on is read as a server reads it: the release resolves the arguments, and the framework gates
as it does in a server, so a patch that does not declare a feature does not go live. Real servers
play what mlx declares (`test_mlx_features`).

The check ``verify`` is the patch's own proof. It is played in a process in which the release has
published a server with the feature's arguments. Features of several ranks have several processes,
which have met in the release's own groups. The other checks are functions and tests, `NAMED`.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import released
from arguments import arguments
from feature_examples import example
from matrix import applying
from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import Patch, by_id
from sglang_perf_patches.model.releases import KNOWN
from sglang_perf_patches.model.setups import FEATURES
from tests.server import test_mlx_features

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("play_setups.py")
RANK = Path(__file__).with_name("play_ranks.py")
RELEASES = ("0.5.9", "0.5.11", "0.5.15", "0.5.17", "0.5.22", "0.5.23")
SETS = ("mla", "mamba", "swa")
"""Whose cases take the arguments of a server from `verify.stock`."""
RANKS = {"tensor-parallel", "expert-parallel", "expert-all-to-all"}
"""Features of `verify` for which one process is no proof, and which two ranks have on together."""
APART = {"dp-attention"}
"""The same for two ranks that have requests of their own."""
OWN = {"eagle", "frozen-kv-mtp", "pages", "tracked-states"}
"""What the cases themselves have on, whatever is published."""
TOGETHER = (
    {"standalone", "data-parallel", "no-overlap", "deterministic", "forward-metrics"}
    | {"draft-vocabulary", "sessions", "mixed-chunks", "no-radix-cache"},
    {"decode-server", "retracted-in-tensors"},
    {"prefill-server"},
    {"other-tracking"},  # takes the argument that "tracked-states" sets
    {"two-batch-overlap"},
)
"""Features that one server has on, apart from all others, which another one has."""
OTHERS = {
    *("no-cuda-graphs", "no-window-pool", "whole-prefills", "lora", "quantised-kv"),
    *("quantised-weights", "priorities", "other-gpu", "hierarchical-cache", "returned-insides"),
    *("multimodal", "compiled"),
}
"""Further features that one server has on. One that is missing here changes requests or layers in a
way that no case shows, such as ``embeddings``: it takes a check of its own."""
VERIFIED = {*RANKS, *APART, *OWN, *OTHERS}.union(*TOGETHER)
GRAPH = "mamba.gdn-prefill-graph"
SLOTS = "mamba.slot-exhaustion"
ROWS = "mamba.freed-rows"
FREED = "mamba/freed_jobs"
TABLES = "mla.page-table-bound"
CHUNKS = "mamba.mamba2-chunk-indices"
POOL = "swa.window-pool"
TAILS = "swa.tail-prealloc swa.page-size-1"
QUEUE = f"{TAILS} swa.idle-admission"
ELSEWHERE = {"mla.request-broadcast", "mla.cache-acks", "mlx.decode-context"}
"""Patches whose own tests show what they declare; no release has the code of the second one."""
NOT_THERE = {("context-parallel", "0.5.11"), ("context-parallel", "0.5.14")}
"""Decode context parallelism came with 0.5.15."""
FEATURE = {each.name: each for each in FEATURES.all}


@dataclass(frozen=True)
class Play:
    """How a check is played."""

    patches: tuple[str, ...]
    features: frozenset[str]
    script: Path  # what two ranks run, or a module with jobs
    jobs: tuple[released.Job, ...]  # of the module, in one process
    server: Mapping[str, Any] | None  # further arguments of the ranks' server, if they take some
    release: str  # "" for the newest of each patch


def _play(
    patches: str, features: str, script: str, *jobs: Any, server: Any = None, release: str = ""
) -> Play:
    path = ROOT / "tests" / f"{script}.py"
    return Play(tuple(patches.split()), frozenset(features.split()), path, jobs, server, release)


def _slots(draw: str, features: str) -> Play:
    return _play(SLOTS, features, "mamba/slots_jobs", ("episodes", {"count": 8, "draw": draw}))


def _decoding(features: str, check: str, patches: str = QUEUE, /, **given: Any) -> Play:
    return _play(patches, features, "swa/jobs", ("select", {"text": "swa"}), (check, given))


_DP_ATTENTION = {"enable_dp_attention": True, "dp_size": 2, "chunked_prefill_size": 128}
NAMED: dict[str, tuple[Play, ...]] = {
    "tests/mla/check_page_table_bound.py: of_a_hybrid_model": (
        _play(TABLES, "tracked-states", "mla/jobs", ("check", {"patch": TABLES})),
    ),
    "tests/mamba/qwen_rank.py: main": (
        _play(GRAPH, "tensor-parallel expert-parallel", "mamba/qwen_rank", server={"ep_size": 2}),
        _play(GRAPH, "dp-attention", "mamba/qwen_rank", server=_DP_ATTENTION),
    ),
    "tests/mamba/mamba2_rank.py: main": (
        _play(CHUNKS, "tensor-parallel", "mamba/mamba2_rank", server={}),
    ),
    "tests/swa/window_rank.py: main": (_play(POOL, "tensor-parallel", "swa/window_rank"),),
    "tests/swa/prefill_rank.py: main": (
        _play("swa.prefill-graph", "tensor-parallel no-cuda-graphs", "swa/prefill_rank"),
    ),
    "tests/mamba/qwen_spec_jobs.py: replies": (
        _play(GRAPH, "eagle", "mamba/qwen_spec_jobs", ("replies", {})),
    ),
    "tests/mamba/qwen_jobs.py: replies": (
        _play(f"{GRAPH} {SLOTS}", "multimodal", "mamba/qwen_jobs", ("replies", {})),
    ),
    "tests/mamba/qwen_jobs.py: with_images": (
        _play(GRAPH, "multimodal", "mamba/qwen_jobs", ("with_images", {})),
    ),
    "tests/mamba/qwen_jobs.py: with_features": tuple(
        _play(GRAPH, names, "mamba/qwen_jobs", ("with_features", {"names": names}))
        for names in ("no-radix-cache mixed-chunks", "tracked-states sessions priorities")
    ),
    "tests/proof/mamba/exhaustion.py: drafting": (_slots("drafting", "eagle draft-trees"),),
    "tests/proof/mamba/exhaustion.py: late": (_slots("late", "other-tracking"),),
    "tests/proof/mamba/exhaustion.py: hosted": (_slots("hosted", "hierarchical-cache"),),
    "tests/proof/mamba/exhaustion.py: sending": (_slots("sending", "prefill-server"),),
    "tests/mamba/freed_jobs.py: with_eagle": (
        _play(ROWS, "eagle draft-trees", FREED, ("with_eagle", {}), release="0.5.16"),
    ),
    "tests/mamba/freed_jobs.py: with_ngram": (_play(ROWS, "ngram", FREED, ("with_ngram", {})),),
    "tests/swa/machine.py: play": (
        _decoding("pages", "play", episodes=3),
        _decoding("pipeline", "play", TAILS, episodes=2, layouts=["stages"]),
        _decoding("dp-attention", "play", TAILS, episodes=2, layouts=["attention"]),
    ),
    "tests/swa/checks.py: the_bound_holds_with_drafts": (
        _decoding("eagle draft-trees", "the_bound_holds_with_drafts", page_size=1),
    ),
    "tests/swa/checks.py: an_idle_rank_is_served": (
        _decoding("dp-attention", "an_idle_rank_is_served", "swa.idle-admission"),
    ),
    "tests/swa/window_checks.py: both_together": (
        _play(POOL, "no-window-pool", "swa/window_checks", ("both_together", {})),
    ),
}
"""Checks by the names that patches declare."""
QUICK = ("tests/proof/mamba/exhaustion.py: sending", "tests/swa/checks.py: an_idle_rank_is_served")
"""Those that the default tier plays: no model computes in them."""


def _declared(patch: str) -> Mapping[str, str]:
    return by_id(sets.load())[patch].proven_with or {}


def _verified(patch: str, release: str) -> set[str]:
    """The features that a patch declares with its proof, of what a release has."""
    known = arguments(release)

    def is_there(name: str) -> bool:
        switches = set(FEATURE[name].arguments())
        return name == "other-gpu" or bool(known & set(example(FEATURE[name])) & switches)

    return {n for n, check in _declared(patch).items() if check == "verify" and is_there(n)}


def _servers(
    release: str, name: str, divided: Callable[[set[str]], Iterable[set[str]]]
) -> Iterable[tuple[set[str], list[str]]]:
    """Servers of a release: those of the declared features that each has on, and its patches."""
    by_features: dict[frozenset[str], list[str]] = {}
    for patch in applying(name, release):
        for features in filter(None, divided(_verified(patch, release))):
            by_features.setdefault(frozenset(features), []).append(patch)
    return [(set(features), patches) for features, patches in by_features.items()]


def _of_one_process(declared: set[str]) -> list[set[str]]:
    here = declared - RANKS - APART
    return [here.difference(*TOGETHER), *(here & group for group in TOGETHER)]


@pytest.mark.whole_matrix  # up to ten minutes each
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("release", RELEASES)
def test_each_declared_feature_is_played(release: str, name: str) -> None:
    for features, patches in _servers(release, name, _of_one_process):
        words = ",".join(sorted(features)), *patches
        _require_played(released.answers(released.tree(release), SCRIPT, *words), patches, features)


def test_the_quickest_proof_is_played_with_what_it_declares() -> None:
    """On the newest release."""
    features = _of_one_process(_verified(TABLES, "0.5.23"))[0]
    assert {"lora", "other-gpu", "hierarchical-cache", "multimodal"} <= features
    lines = released.answers(released.tree("0.5.23"), SCRIPT, ",".join(features), TABLES)
    _require_played(lines, [TABLES], features)


@pytest.mark.whole_matrix  # two processes each
@pytest.mark.parametrize("features", [RANKS, APART], ids=["tensor-parallel", "dp-attention"])
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("release", ["0.5.9", "0.5.16", "0.5.23"])
def test_features_of_ranks_are_played_by_two(release: str, name: str, features: set[str]) -> None:
    for declared, patches in _servers(release, name, lambda declared: [declared & features]):
        ranks = released.ranks(release, RANK, [",".join(sorted(declared))] * 2, *patches)
        assert [(each["rank"], each["ranks"]) for each in ranks] == [(0, 2), (1, 2)]
        for each in ranks:
            _require_played(each["lines"], patches, declared)


def _require_played(
    lines: Sequence[Mapping[str, Any]], patches: Sequence[str], features: Collection[str]
) -> None:
    assert [line.get("case") for line in lines] == list(patches), lines
    for line in lines:
        assert line.get("compared", 0) > 0, (features, line)
        assert set(features) <= set(line["on"]), (line["case"], set(features) - set(line["on"]))


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=() if check in QUICK else pytest.mark.whole_matrix)
        for check in NAMED
    ],
)
def test_each_check_that_is_named_has_on_what_names_it(check: str) -> None:
    """On the newest release of each patch; the tests of the set have the others."""
    for play in NAMED[check]:
        for release in {play.release or _newest(patch) for patch in play.patches}:
            on = (_on_by_jobs if play.jobs else _on_by_ranks)(release, play)
            for patch in set(play.patches) & set(applying(_set(play.patches[0]), release)):
                names = {name for name, by in _declared(patch).items() if by == check}
                assert names & play.features <= on[patch], (release, patch, names - on[patch])


def _on_by_jobs(release: str, play: Play) -> dict[str, set[str]]:
    """Patch → the features with which the check had it on."""
    *_, line = lines = released.play(released.tree(release), play.script, play.jobs)
    for each in lines:
        assert "error" not in each, each["error"]
        if each["job"] == "check":
            assert set(each["value"].values()) == {None}, each
    return {patch: set(line["on"].get(patch, ())) for patch in play.patches}


def _on_by_ranks(release: str, play: Play) -> dict[str, set[str]]:
    """The same of the only patch, in both ranks."""
    (patch,) = play.patches
    words = () if play.server is None else (json.dumps(play.server),)
    ranks = released.ranks(release, play.script, [patch, patch], *words)
    assert [each["patch"] for each in ranks] == [["live", ""]] * 2
    return {patch: set(ranks[0]["on"]) & set(ranks[1]["on"])}


def _set(patch: str) -> str:
    return patch.partition(".")[0]


def _newest(patch: str) -> str:
    variants = by_id(sets.load())[patch].variants
    return max((name for each in variants for name in each.releases), key=KNOWN.index)


def _unplayed(patch: Patch) -> set[str]:
    """The features that no play of the check which a patch names has on."""
    return {
        feature
        for feature, check in (patch.proven_with or {}).items()
        if patch.id not in ELSEWHERE
        and feature not in (VERIFIED if check == "verify" else _features(patch, check))
    }


def _features(patch: Patch, check: str) -> set[str]:
    if check == test_mlx_features.NAME:
        return test_mlx_features.played(patch)
    plays = [play for play in NAMED.get(check, ()) if patch.id in play.patches]
    return {feature for play in plays for feature in play.features}


@pytest.mark.parametrize("name", sets.NAMES)
def test_what_is_declared_is_played(name: str) -> None:
    for patch in sets.declared(name).patches:
        assert not _unplayed(patch), patch.id


@pytest.mark.parametrize("feature", ["pipeline", "embeddings"])
def test_what_no_check_has_on_can_not_be_declared(feature: str) -> None:
    for name in sets.NAMES:
        for patch in sets.declared(name).patches:
            proven = patch.proven_with or {}
            for check in {*proven.values()} - {proven.get(feature)}:
                wrong = replace(patch, proven_with={**proven, feature: check})
                assert patch.id in ELSEWHERE or _unplayed(wrong) == {feature}, (patch.id, check)


@pytest.mark.parametrize(
    ("feature", "said"),
    [
        ("context-parallel", "context parallelism is on"),
        *(
            pytest.param(*each, marks=pytest.mark.whole_matrix)
            for each in (
                ("pipeline", "pipeline parallelism is on"),
                ("two-batch-overlap", "two-batch overlap is on"),
                ("memory-saver", "memory can be released and resumed"),
            )
        ),
    ],
)
@pytest.mark.parametrize(
    "release",
    [
        *(pytest.param(each, marks=pytest.mark.whole_matrix) for each in ("0.5.11", "0.5.14")),
        "0.5.23",
    ],
)
def test_what_does_not_declare_a_feature_is_gated(release: str, feature: str, said: str) -> None:
    patches = [
        patch
        for patch in applying("mla", release)
        if feature not in (by_id(sets.load())[patch].proven_with or {})
    ]
    assert patches
    if not arguments(release) & set(example(FEATURE[feature])) & set(FEATURE[feature].arguments()):
        assert (feature, release) in NOT_THERE
        return
    for line in released.answers(released.tree(release), SCRIPT, feature, *patches):
        assert said in line.get("missing", line.get("refused", "")), line


@pytest.mark.parametrize("feature", ["eagle", "hierarchical-cache"])
def test_a_body_is_gated_with_what_it_was_not_played_with(feature: str) -> None:
    """Newer releases' bodies were (`Variant.not_with`)."""
    patch = "mamba.slot-exhaustion"
    assert feature in (by_id(sets.load())[patch].proven_with or {})
    (line,) = released.answers(released.tree("0.5.16"), SCRIPT, feature, patch)
    assert line.get("missing", "").startswith("gated here"), line


def test_every_check_that_is_named_exists() -> None:
    for patch in by_id(sets.load()).values():
        for check in (patch.proven_with or {}).values():
            word, _, played = check.partition(" ")
            if word == "verify":
                assert (played or patch.id) in by_id(sets.load()), (patch.id, check)
                continue
            text = (ROOT / word.rstrip(":")).read_text(encoding="utf-8")
            assert not played or f"def {played}(" in text, (patch.id, check)
