"""How fingerprints are written: a line for each digest, with the spans of its releases."""

import doctest
import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_perf_patches import sets
from sglang_perf_patches.model import releases
from tests.maintain import ROOT, fingerprints, quotes

_NAMES = st.one_of(st.sampled_from(releases.KNOWN), st.just("git-5b9fbc51dcff"), st.just("git-0"))


@given(st.sets(_NAMES, min_size=1))
def test_spans_are_read_as_they_were_written(names: set[str]) -> None:
    text = fingerprints.as_spans(names)
    assert set(releases.from_spans(text)) == names
    assert fingerprints.as_spans(releases.from_spans(text)) == text
    # As few spans as can be: no release follows the end of the one before.
    ends = [part.split(" … ") for part in text.split(", ") if not part.startswith("git-")]
    places = [(releases.KNOWN.index(e[0]), releases.KNOWN.index(e[-1])) for e in ends]
    assert all(before[1] + 1 < after[0] for before, after in pairwise(places))


def test_the_examples_in_the_docstrings() -> None:
    for module, least in ((releases, 2), (fingerprints, 1), (quotes, 1)):
        tested = doctest.testmod(module)
        assert tested.attempted >= least
        assert not tested.failed


@pytest.mark.parametrize(
    "text", ["", "0.5.8", "0.5.9 …", "0.5.10 … 0.5.9", "0.5.9 … git-5b9f", "0.5.9…0.5.10", "0.5.9,"]
)
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        releases.from_spans(text)


def test_an_unknown_release_is_not_written() -> None:
    with pytest.raises(ValueError, match=r".+"):
        fingerprints.as_spans(["0.5.9", "0.5.8"])


@pytest.mark.parametrize("name", sets.NAMES)
def test_a_set_has_one_line_a_digest(name: str) -> None:
    known = sets.read_known(name)
    text = (ROOT / "src/sglang_perf_patches/sets" / name / "known.json").read_text("utf-8")
    assert text == fingerprints.render(known)
    entries = re.findall(
        r"^(?: .*\{| ) *\"[0-9a-f]{64}[^\"]*\": \"[^\"]+\"\}?,?$", text, re.MULTILINE
    )
    assert len(entries) == sum(map(len, known.values()))
    changed = [hashes for hashes in known.values() if len(hashes) > 1]
    once = len(known) - len(changed)
    assert text.count("\n") == 2 + once + sum(2 + len(hashes) for hashes in changed)
    # Nothing is lost, doubled or spread over two digests of one definition.
    for hashes in json.loads(text).values():
        listed = [one for where in hashes.values() for one in releases.from_spans(where)]
        assert len(listed) == len(set(listed))


def test_all_sets_have_at_most_2200_lines() -> None:
    files = (ROOT / "src/sglang_perf_patches/sets").glob("*/known.json")
    assert sum(file.read_text("utf-8").count("\n") for file in files) <= 2200
