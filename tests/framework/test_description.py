"""What README and description link to is there, and the badges say what the package declares."""

import re
import runpy
from pathlib import Path

import pytest

from tests.benchmarks import gains
from tests.maintain import ROOT, tables

describe = runpy.run_path(str(ROOT / "setup.py"))["description"]


def test_every_link_of_the_description_is_an_address() -> None:
    described = describe((ROOT / "README.md").read_text(encoding="utf-8"))
    targets = re.findall(r"\]\(([^)]*)\)", described)
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []


def test_what_a_link_says_stays() -> None:
    text = "![a chart](examples/a.svg)\n\n[a page](src/a.md), [a site](https://a.example)"
    assert describe(text) == "a page, [a site](https://a.example)"


@pytest.mark.parametrize(
    "document",
    [
        *(ROOT / "README.md", ROOT / ".github/CONTRIBUTING.md", ROOT / gains.PAGE),
        *sorted((ROOT / "src/sglang_perf_patches/pages").glob("*.md")),
    ],
    ids=lambda path: path.name,
)
def test_every_link_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    missing = {
        name for name in targets if "://" not in name and not (document.parent / name).exists()
    }
    assert missing == set()


def test_the_badges_are_described() -> None:
    told = tables.badges(ROOT)
    assert list(told) == ["version", "Python", "sglang", "licence"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"![{tables.label_of(told)}]({tables.BADGES})" in readme
