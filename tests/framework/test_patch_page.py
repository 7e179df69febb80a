"""What `explain` reads of a patch's page, and that the pages are where it looks; ``help``."""

import json
import re
from pathlib import Path

import pytest

from sglang_perf_patches import cli, downloads, patch_page, sets
from sglang_perf_patches.cli import main, render
from sglang_perf_patches.cli.verbs import helping
from sglang_perf_patches.model.patch import by_id

TEXT = """# one.a

<!-- summary -->
It does. On by default.
<!-- /summary -->

**Use it if** you run `--a b`
or [that](x.md).

| if you use | gain | cost |
| --- | --- | --- |
| `--a b` | [2 ms → 1 ms](y.md#r) first token | none known |

## What you gain

**Much**, on one machine.

| measured | stock | patched |
| --- | --- | --- |
| [first token](y.md#r) | 2 ms | 1 ms |
| memory |  | none |

It varies.

## What it costs

Little.

| at 1 request | stock | patched |
| --- | --- | --- |
| [boot](y.md#r) | 1 s | 2 s |

## Proven with

<!-- proven -->
No.
<!-- /proven -->

## Switch it

<!-- switch -->
    x
<!-- /switch -->

## Why

Stock waits.

## How

The patch does not.

| when | stock |
| --- | --- |
| later | waits |

## Obsolete when

Upstream has it.

## Releases

<!-- releases -->
all
<!-- /releases -->
"""


def test_the_prose_of_a_page_is_plain_text() -> None:
    assert patch_page.parse(TEXT) == patch_page.Page(
        condition="you run --a b\nor that.",
        headlines=(patch_page.Headline("--a b", "2 ms → 1 ms first token", "none known"),),
        gain=(
            "Much, on one machine.\n\n"
            "| measured | stock | patched |\n| --- | --- | --- |\n"
            "| first token | 2 ms | 1 ms |\n| memory |  | none |\n\n"
            "It varies."
        ),
        cost=(
            "Little.\n\n"
            "| at 1 request | stock | patched |\n| --- | --- | --- |\n| boot | 1 s | 2 s |"
        ),
        why="Stock waits.",
        how="The patch does not.\n\n| when | stock |\n| --- | --- |\n| later | waits |",
        goes_when="Upstream has it.",
    )


@pytest.mark.parametrize(
    ("gain", "ratio"),
    [
        ("20 ms → 5 ms a step", 0.25),
        ("1,000 → 4,000 tokens fit", 0.25),
        ("330, 290 ms → 100, 51, 35 ms first token of 16 (0.5.23, H100)", 0.2),
        ("3 and 5 s → 1.5 and 0.5 s (0.5.17, H200)", 0.25),
        ("537 MB → 53.7 MB held (0.5.23, Intel Xeon)", 0.1),
        ("76 → 0 retractions", 0.0),
        ("0.96 of a prompt's time", 0.96),
        ("no crash", 1.0),
    ],
)
def test_gains_have_an_order(gain: str, ratio: float) -> None:
    assert patch_page.Headline("x", gain, "y").ratio == ratio


@pytest.mark.parametrize(
    ("release", "figure"),
    [("0.5.9", "0.5.17"), ("0.5.17", "0.5.17"), ("0.5.22", "0.5.23"), ("fork", "0.5.23")],
)
def test_the_figure_of_the_nearest_release_is_shown(release: str, figure: str) -> None:
    newest, older = (
        patch_page.Headline("x", f"2 ms → 1 ms ({measured}, H200)", "y")
        for measured in ("0.5.23", "0.5.17")
    )
    shown = patch_page.Page(headlines=(newest, older)).headline(release)
    assert shown is not None
    assert shown.release == figure
    words = patch_page.Headline("x", "no crash", "y")
    assert patch_page.Page(headlines=(words,)).headline(release) == words
    assert patch_page.Page().headline(release) is None


def test_a_table_names_each_figure() -> None:
    table = "| measured | stock | patched |\n| --- | --- | --- |\n"
    heading, row = "| on a CPU |  |  |\n", "| a step | 2 ms | 1 ms |\n| memory |  | none |"
    assert render.markdown(table + heading + row).splitlines() == [
        *("  measured:", "  - on a CPU:"),
        *("  - a step: stock: 2 ms; patched: 1 ms", "  - memory: patched: none"),
    ]
    words = "| when | stock |\n| --- | --- |\n| no slot | the scheduler dies |"
    assert render.markdown(words).splitlines() == [
        *("  stock, by when:", "  - no slot: the scheduler dies")
    ]


def test_no_page_or_text_is_an_empty_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_page, "FOLDER", tmp_path)
    assert patch_page.read("one.a") == patch_page.Page()
    (tmp_path / "one" / "a").mkdir(parents=True)
    patch_page.path("one.a").write_bytes(b"\xff\xfe")
    assert patch_page.read("one.a") == patch_page.Page()
    patch_page.path("one.a").write_text(TEXT, encoding="utf-8")
    assert patch_page.read("one.a").why == "Stock waits."


@pytest.mark.parametrize("patch_id", ["swa.page-size-1", "mamba.gdn-prefill-graph"])
def test_explain_shows_the_page(patch_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    parsed = patch_page.read(patch_id)
    prose = ("why", "how", "gain", "condition", "cost", "goes_when")
    tree = ["--sglang-path", str(downloads.tree("0.5.23"))]
    assert main(["explain", patch_id, "--json", *tree]) == 0
    data = json.loads(capsys.readouterr().out)
    texts = [getattr(parsed, name) for name in prose]
    assert [data[name] for name in prose] == texts
    assert all(texts)
    assert main(["explain", patch_id, *tree]) == 0
    text = "".join(capsys.readouterr().out.split())  # wrapped anywhere
    for part in texts:
        assert "".join(render.markdown(part).split()) in text


def test_every_patch_has_a_page_and_no_page_lacks_a_patch() -> None:
    pages = {path.relative_to(patch_page.FOLDER) for path in patch_page.FOLDER.rglob("*.md")}
    assert pages == {
        patch_page.path(id).relative_to(patch_page.FOLDER) for id in by_id(sets.load())
    }


PAGE = """# A title

<!-- made -->
| word | meaning | more |
| --- | --- | --- |
| `a` | what [it](a.md) is | |
| b | two words | and more |
<!-- /made -->

**One** paragraph with `code` and a
[link](https://a.example).

- an item that is
  long
- another

    as  it is
        more

    y = x
"""
SHOWN = """A TITLE

  word:
  - `a`: meaning: what
    it is
  - b: meaning: two
    words; more: and
    more

One paragraph with
`code` and a link.

  - an item that is
    long
  - another

    as  it is
        more

    y = x"""


def test_a_page_is_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "PAGE", 22)
    assert render.markdown(PAGE) == SHOWN


@pytest.mark.parametrize("topic", helping.topics())
def test_every_topic_is_printed_and_listed(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    first = (helping.FOLDER / f"{topic}.md").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    (line,) = (one for one in capsys.readouterr().out.splitlines() if one.split()[:1] == [topic])
    assert line.endswith(first[2:])
    assert main(["help", topic]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(first[2:].upper())
    for mark in ("<!--", "](", "**", "| "):
        assert mark not in shown
    prose = (one for one in shown.splitlines() if not re.match(" {4}(sglang-|SGLANG_)", one))
    assert max(map(len, prose)) <= render.PAGE


def test_an_unknown_topic_suggests_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "state"]) == 2
    assert "no help on 'state': did you mean states?" in capsys.readouterr().err
    assert main(["help", "xyzzy"]) == 2
    assert "the topics are api, cli, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--help"], "0", [f"\n    {verb} " for verb in cli._VERBS]),
        (["doctor", "--help"], "0", [" doctor [--gpu NAME] [options] -- COMMAND"]),
        (
            ["bench", "server", "--help"],
            "0",
            ["--a TEXT", "--b TEXT", "Exit codes"],
        ),
        (["bench", "server", "--help"], "0", ["--turns", "--url", "--json"]),
        (["lst"], "2", ["did you mean list?"]),
    ],
)
def test_the_parser_helps(
    words: list[str], code: str, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=code):
        main(words)
    shown = "".join(capsys.readouterr())
    assert [each for each in said if each not in shown] == []
