"""``help``: its pages as plain text, and what it says where there is none."""

import re

import pytest

from sglang_perf_patches import cli
from sglang_perf_patches.cli import render
from sglang_perf_patches.cli.verbs import helping

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
    assert cli.main(["help"]) == 0
    first = (helping.FOLDER / f"{topic}.md").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    (line,) = (one for one in capsys.readouterr().out.splitlines() if one.split()[:1] == [topic])
    assert line.endswith(first[2:])
    assert cli.main(["help", topic]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(first[2:].upper())
    for mark in ("<!--", "](", "**", "| "):
        assert mark not in shown
    prose = (one for one in shown.splitlines() if not re.match(" {4}(sglang-|SGLANG_)", one))
    assert max(map(len, prose)) <= render.PAGE


def test_an_unknown_topic_suggests_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "state"]) == 2
    assert "no help on 'state': did you mean states?" in capsys.readouterr().err
    assert cli.main(["help", "xyzzy"]) == 2
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
        cli.main(words)
    shown = "".join(capsys.readouterr())
    assert [each for each in said if each not in shown] == []
