"""Each feature that a patch declares is played by the check that it names, on released code.

The check ``verify`` is the patch's own proof. It is played in a process in which the release has
published a server with the feature on, and with the feature's arguments in what the case asks of
the server. The framework gates there as it does in a server, so a patch that does not declare a
feature does not go live: its case answers that it is gated.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import released
from arguments import arguments
from feature_examples import example
from matrix import applying
from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.model.setups import FEATURES

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("play_setups.py")
RELEASES = ("0.5.9", "0.5.11", "0.5.15", "0.5.17", "0.5.22", "0.5.23")
SETS = ("mla", "mamba", "swa")
"""Whose cases take the arguments of a server from `verify.stock`."""
TOGETHER = (
    {"standalone", "data-parallel", "no-overlap", "deterministic", "forward-metrics"}
    | {"draft-vocabulary", "sessions", "mixed-chunks", "no-radix-cache"},
    {"decode-server", "retracted-in-tensors"},
    {"prefill-server"},
    {"other-tracking"},  # takes the argument that "tracked-states" sets
    {"two-batch-overlap"},
)
"""Features that one server has on, apart from all others, which another one has."""
NOT_THERE = {("context-parallel", "0.5.11"), ("context-parallel", "0.5.14")}
"""Decode context parallelism came with 0.5.15."""
FEATURE = {each.name: each for each in FEATURES.all}


def _declared(patch: str, release: str) -> set[str]:
    """What a patch declares of what a release has."""
    proven = by_id(sets.load())[patch].proven_with or {}
    known = arguments(release)
    return {
        name
        for name, check in proven.items()
        if check == "verify"
        and known & set(example(FEATURE[name])) & set(FEATURE[name].arguments())
    }


def _servers(release: str, name: str) -> Iterator[tuple[frozenset[str], list[str]]]:
    """The servers that are played on a release, and the patches that each plays."""
    apart = set().union(*TOGETHER)
    by_features: dict[frozenset[str], list[str]] = {}
    for patch in applying(name, release):
        declared = _declared(patch, release)
        for features in (declared - apart, *(declared & group for group in TOGETHER)):
            if features:
                by_features.setdefault(frozenset(features), []).append(patch)
    yield from by_features.items()


@pytest.mark.whole_matrix  # up to two minutes each
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("release", RELEASES)
def test_each_declared_feature_is_played(release: str, name: str) -> None:
    for features, patches in _servers(release, name):
        words = ",".join(sorted(features)), *patches
        lines = released.answers(released.tree(release), SCRIPT, *words)
        assert [line.get("case") for line in lines] == patches, lines
        for line in lines:
            assert line.get("compared", 0) > 0, (features, line)
            assert features <= set(line["on"]), (line["case"], features - set(line["on"]))


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
def test_a_released_server_gates_what_does_not_declare_a_feature(
    release: str, feature: str, said: str
) -> None:
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
