"""The grammar of SGLANG_PERF_PATCHES."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_perf_patches.model.patch import Patch
from sglang_perf_patches.model.selection import Selection, SelectionError, parse
from sglang_perf_patches.model.switch import is_off


def sample() -> dict[str, Patch]:
    texts = dict.fromkeys(("summary",), "")
    return {
        patch.id: patch
        for patch in (
            Patch(id="mlx.mask", **texts),
            Patch(id="swa.tail", **texts),
            Patch(id="swa.page", requires=("swa.tail",), **texts),
            Patch(id="swa.evict", kind="policy", requires=("swa.page",), **texts),
        )
    }


def chosen(text: str) -> tuple[str, ...]:
    return parse(text, sample()).ids


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", ("mlx.mask", "swa.tail", "swa.page")),
        ("none", ()),
        ("", ()),
        ("  ", ()),
        ("mlx", ("mlx.mask",)),
        (" mlx , swa.tail ", ("mlx.mask", "swa.tail")),
        ("swa.page", ("swa.tail", "swa.page")),
        ("all,-swa", ("mlx.mask",)),
        ("-swa", ("mlx.mask",)),
        ("-swa.tail", ("mlx.mask",)),
        ("all,-swa.page", ("mlx.mask", "swa.tail")),
        ("swa.evict", ("swa.tail", "swa.page", "swa.evict")),
        ("all,swa.evict", ("mlx.mask", "swa.tail", "swa.page", "swa.evict")),
        ("swa,swa.evict,-swa", ()),
        ("swa.evict,-swa.evict", ("swa.tail", "swa.page")),
        ("mlx,mlx", ("mlx.mask",)),
    ],
)
def test_chosen(text: str, expected: tuple[str, ...]) -> None:
    assert chosen(text) == expected


def test_policy_patches_need_their_own_name() -> None:
    assert "swa.evict" not in chosen("swa")
    assert "swa.evict" not in chosen("all")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mlx,,swa", "empty item"),
        (",", "empty item"),
        ("mlx,", "empty item"),
        ("none,mlx", "'none' must stand alone"),
        ("mlx,none", "'none' must stand alone"),
        ("mxl", "did you mean mlx"),
        ("swa.tial", "did you mean swa.tail"),
        ("-swaa", "did you mean swa"),
        ("zzzz", "the sets are mlx, swa"),
        ("-all", "unknown set or patch 'all'"),
        ("swa.page,-swa.tail", "'swa.page' needs 'swa.tail'"),
        ("swa.evict,-swa.tail", "'swa.evict' needs 'swa.tail'"),
    ],
)
def test_errors_name_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(SelectionError) as caught:
        parse(text, sample())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_by_name_and_in_full() -> None:
    selection = parse("all,swa.page", sample())
    assert selection.by_name == {"swa.page", "swa.tail"}
    assert selection.in_full == {"swa.page"}
    assert parse("all", sample()).by_name == frozenset()
    assert parse("swa", sample()).by_name == {"swa.tail", "swa.page"}
    assert parse("swa", sample()).in_full == frozenset()


words = st.sampled_from(
    [
        "all",
        "none",
        "mlx",
        "swa",
        "mlx.mask",
        "swa.tail",
        "swa.page",
        "swa.evict",
        "",
        "x",
        "-",
        "--",
    ]
)
items = st.builds("".join, st.tuples(st.sampled_from(["", "-", " ", " -"]), words))


@given(st.one_of(st.text(), st.lists(items).map(",".join)))
def test_any_text_is_a_selection_or_one_clear_error(text: str) -> None:
    try:
        selection = parse(text, sample())
    except SelectionError:
        return
    assert isinstance(selection, Selection)
    assert selection.in_full <= selection.by_name <= set(selection.ids)
    for id in selection.ids:
        assert set(sample()[id].requires) <= set(selection.ids)
    if is_off(text):
        assert not selection.ids
