"""The grammar of SGLANG_PERF_PATCHES."""

import pytest

from sglang_perf_patches.model.patch import Patch
from sglang_perf_patches.model.selection import SelectionError, parse

PATCHES = {
    patch.id: patch
    for patch in (
        Patch(id="mlx.mask", summary=""),
        Patch(id="swa.tail", summary=""),
        Patch(id="swa.page", requires=("swa.tail",), summary=""),
        Patch(id="swa.evict", kind="policy", requires=("swa.page",), summary=""),
    )
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", ("mlx.mask", "swa.tail", "swa.page")),
        *((word, ()) for word in ("none", " None ", "", "  ", "off", "0", "NONE", "no", "false")),
        ("mlx", ("mlx.mask",)),
        ("swa", ("swa.tail", "swa.page")),
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
    assert parse(text, PATCHES).ids == expected


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
    with pytest.raises(SelectionError, match=rf"^.*{said}.*$"):
        parse(text, PATCHES)


def test_by_name_and_in_full() -> None:
    selection = parse("all,swa.page", PATCHES)
    assert selection.by_name == {"swa.page", "swa.tail"}
    assert selection.in_full == {"swa.page"}
    assert parse("all", PATCHES).by_name == frozenset()
    assert parse("swa", PATCHES).by_name == {"swa.tail", "swa.page"}
    assert parse("swa", PATCHES).in_full == frozenset()
    assert parse("swa,-swa.page", PATCHES).by_name == {"swa.tail"}
    assert parse("swa.evict,mlx,-swa.evict", PATCHES).in_full == frozenset()
