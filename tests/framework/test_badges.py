"""The README's badges say what the package declares."""

from __future__ import annotations

from tests.maintain import ROOT, badges


def test_the_badges_are_true() -> None:
    told = badges.badges(ROOT)
    assert list(told) == ["version", "Python", "sglang", "licence"]
    text = (ROOT / badges.PICTURE).read_text(encoding="utf-8")
    assert text == badges.picture(ROOT), "run python3 -m tests.maintain.tables"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    label = "; ".join(f"{name} {value}" for name, value in told.items())
    assert f"![{label}]({badges.PICTURE})" in readme
