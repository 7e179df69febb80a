"""A patch is declared once, next to its functions; what is judged and made live follows from it."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_perf_patches.model.declaration import Declaration, fixes, gains, ports

A, B = "sglang.srt.a:f", "sglang.srt.b:f"


def declared(spans: str = "0.5.9 … 0.5.13", **rest: Any) -> Declaration:
    return Declaration(__name__, spans, **rest)


def made(declaration: Declaration, number: int = -1) -> dict[str, Any]:
    """What the changes of a variant make of ``("stock", reference)``."""
    changes: dict[str, Any] = {}
    process: Any = SimpleNamespace(
        state=SimpleNamespace(),
        override=lambda reference, make: changes.update({reference: make}),
    )
    declaration.patch().variants[number].install(process)
    return {name: make(("stock", name)) for name, make in changes.items()}


def test_it_is_named_by_its_module_and_its_docstring() -> None:
    patch = declared().patch()
    assert patch.id == f"{__name__.split('.')[-2]}.test-declaration"
    assert patch.summary.startswith("a patch is declared once, next to its functions")
    assert not patch.summary.endswith(".")


def test_it_is_opt_in_unless_something_is_gained_fixed_or_ported() -> None:
    assert declared().patch().kind == "policy"
    for worth in (fixes("a crash"), ports("sgl-project/sglang#1"), gains("time", "mlx.md#a-row")):
        patch = declared(worth=worth).patch()
        assert (patch.kind, patch.worth) == ("exact", worth)
    assert patch.worth
    assert (patch.worth.source, patch.worth.row) == ("tests/benchmarks/results/mlx.md", "a-row")


def test_releases_with_the_same_parts_are_a_variant() -> None:
    patch = declared(depends=(A, "sglang.srt.c:g"), awaits=("sglang.srt.d",))
    patch.replaces({"… 0.5.10.post1": A, "0.5.11 …": B})(lambda *, stock: stock)
    patch.replaces("sglang.srt.a:C.added", releases="0.5.13", adds=True)(lambda: None)
    patch.on("0.5.12 …", note="Later.", only_with=("mlx",), depends=("sglang.srt.c:h",))
    found = [
        (each.releases, each.targets, each.adds, each.depends, each.note, each.only_with)
        for each in patch.patch().variants
    ]
    assert found == [
        (("0.5.9", "0.5.10", "0.5.10.post1"), (A,), (), ("sglang.srt.c:g",), "", ()),
        (("0.5.11",), (B,), (), (A, "sglang.srt.c:g"), "", ()),
        (
            *(("0.5.12", "0.5.12.post1"), (B,), ()),
            *((A, "sglang.srt.c:g", "sglang.srt.c:h"), "Later.", ("mlx",)),
        ),
        (
            *(("0.5.13",), (B,), ("sglang.srt.a:C.added",)),
            *((A, "sglang.srt.c:g", "sglang.srt.c:h"), "Later.", ("mlx",)),
        ),
    ]
    assert {each.awaits for each in patch.patch().variants} == {("sglang.srt.d",)}


@pytest.mark.parametrize("releases", ["0.5.14 …", "0.5.8", "0.5.10 … 0.5.9", "0.5.9 … 0.5.14"])
def test_a_release_that_the_patch_does_not_have_is_an_error(releases: str) -> None:
    with pytest.raises(ValueError, match=r"0\.5\."):
        declared().replaces(A, releases=releases)(lambda *, stock: stock)


def test_a_function_gets_the_patch_and_what_was_there_before() -> None:
    patch = declared()

    @patch.replaces(A, B)
    def f(x: int, *more: int, patch: Any, stock: Any, y: int = 2) -> Any:
        return x, more, patch.state.shared, stock, y

    @patch.setup()
    def setup(patch: Any) -> None:
        patch.state.shared = "shared"

    functions = made(patch)
    assert functions[A](1, 3) == (1, (3,), "shared", ("stock", A), 2)
    assert functions[B](1, y=4) == (1, (), "shared", ("stock", B), 4)
    with pytest.raises(TypeError):
        f(1)  # type: ignore[call-arg]  # only its copies have a patch


def test_a_set_up_runs_in_its_releases_before_anything_is_made() -> None:
    patch = declared()
    patch.makes(A)(lambda patch, stock: (patch.state.names, stock))
    patch.setup()(lambda patch: setattr(patch.state, "names", ["all"]))
    patch.setup("0.5.13")(lambda patch: patch.state.names.append("newest"))
    assert made(patch, 0) == {A: (["all"], ("stock", A))}
    assert made(patch) == {A: (["all", "newest"], ("stock", A))}
