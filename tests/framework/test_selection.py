"""The grammar of SGLANG_PERF_PATCHES."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_perf_patches import sets
from sglang_perf_patches.model import retired
from sglang_perf_patches.model.patch import Patch, by_id
from sglang_perf_patches.model.retired import Alias, Retired
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


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """``mlx.gone`` is retired, ``swa.old`` is an old name of ``swa.page``."""
    switch = "stock's own switch is SGLANG_X"
    entry = Retired(since="9.9", because="no gain was measured", instead=switch)
    monkeypatch.setitem(retired.RETIRED, "mlx.gone", entry)
    monkeypatch.setitem(retired.ALIASES, "swa.old", Alias(since="9.9", patch="swa.page"))
    monkeypatch.setitem(retired.ALIASES, "swa.lost", Alias(since="9.9", patch="swa.nowhere"))


GONE = "mlx.gone is retired in 9.9: no gain was measured; stock's own switch is SGLANG_X"
OLD = "swa.old is part of swa.page since 9.9: that is meant"


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize(
    ("text", "expected", "notes"),
    [
        ("mlx.gone", (), (GONE,)),
        (" mlx.gone ,mlx.gone", (), (GONE,)),
        ("mlx.gone,swa.tail", ("swa.tail",), (GONE,)),
        ("all,mlx.gone", ("mlx.mask", "swa.tail", "swa.page"), (GONE,)),
        ("-mlx.gone", ("mlx.mask", "swa.tail", "swa.page"), (GONE,)),
        ("mlx,-mlx.gone", ("mlx.mask",), (GONE,)),
        ("mlx.gone,-mlx", (), (GONE,)),
        ("swa.old", ("swa.tail", "swa.page"), (OLD,)),
        ("all,-swa.old", ("mlx.mask", "swa.tail"), (OLD,)),
        ("swa.old,mlx.gone,-swa.old", ("swa.tail",), (OLD, GONE)),
        ("all", ("mlx.mask", "swa.tail", "swa.page"), ()),
    ],
)
def test_names_that_are_gone_say_so_and_choose_nothing(
    text: str, expected: tuple[str, ...], notes: tuple[str, ...]
) -> None:
    selection = parse(text, sample())
    assert (selection.ids, selection.notes) == (expected, notes)
    assert selection.text == text


@pytest.mark.usefixtures("gone")
def test_an_old_name_is_the_new_one_in_full() -> None:
    selection = parse("swa.old", sample())
    assert (selection.in_full, selection.by_name) == ({"swa.page"}, {"swa.page", "swa.tail"})
    assert parse("mlx.gone", sample()).in_full == frozenset()
    with pytest.raises(SelectionError, match=r"'swa.page' needs 'swa.tail'"):
        parse("swa.old,-swa.tail", sample())


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize("text", ["mlx.gonee", "swa.lost", "mlx.gone,zzzz", "MLX.GONE"])
def test_an_unknown_name_stays_an_error_beside_names_that_are_gone(text: str) -> None:
    with pytest.raises(SelectionError, match="unknown set or patch"):
        parse(text, sample())


def test_no_patch_is_retired_or_an_alias_and_each_alias_means_one() -> None:
    present = by_id(sets.load())
    assert not {*retired.RETIRED, *retired.ALIASES} & present.keys()
    assert not retired.RETIRED.keys() & retired.ALIASES.keys()
    assert {alias.patch for alias in retired.ALIASES.values()} <= present.keys()
    for name in [*retired.RETIRED, *retired.ALIASES]:
        assert parse(name, present).notes == (retired.line(name, present),)


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
