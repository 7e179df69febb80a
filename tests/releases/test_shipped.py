"""What the package brings along of the releases' files is what is read in them."""

import pytest

from sglang_perf_patches import downloads, sets
from sglang_perf_patches.compat import source
from sglang_perf_patches.compat.verdict import judge_each
from sglang_perf_patches.model import releases

MOST_PARSED = 10
"""Files. Declarations may have changed since ``tests.maintain.fingerprints`` wrote the table."""


@pytest.mark.sampled
@pytest.mark.parametrize("release", releases.KNOWN)
def test_a_release_is_judged_the_same_and_hardly_parsed(release: str) -> None:
    root = source.find(downloads.tree(release))
    fast, slow = source.Tree(root), source.Tree(root, table=dict)
    verdicts = judge_each(sets.load(), fast)
    assert len(fast._modules) <= MOST_PARSED
    assert len(fast._definitions) > 100
    for reference, definition in fast._definitions.items():
        assert definition == slow.definition(reference), reference
    assert [(each.word, each.release) for each in verdicts] == [
        (each.word, each.release) for each in judge_each(sets.load(), slow)
    ]
