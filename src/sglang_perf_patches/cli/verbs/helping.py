"""``help``: the pages of `pages`, as plain text."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import Any

from ...model.errors import OperatorError
from .. import render

PARSER: dict[str, Any] = {"epilog": "Without a topic it lists the topics."}

FOLDER = Path(__file__).parents[2] / "pages"
"""The folder of the pages: ``states.md`` is the topic ``states``, its first line the title."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the topic."""
    topic: Any = parser.add_argument("topic", nargs="?", metavar="TOPIC", help="the page to print")
    topic.completer = lambda **_: topics()


def run(args: argparse.Namespace) -> int:
    """Print the page, or the list of all pages."""
    if args.topic is None:
        rows = [["TOPIC", "WHAT IT IS ABOUT"]]
        rows += [[name, _text(name).partition("\n")[0].removeprefix("# ")] for name in topics()]
        print(render.table(rows))
        print("\nRead one: sglang-perf-patches help TOPIC. A verb: sglang-perf-patches VERB --help")
        return 0
    if args.topic not in topics():
        near = difflib.get_close_matches(args.topic.lower(), topics(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"the topics are {', '.join(topics())}"
        raise OperatorError(f"no help on {args.topic!r}: {hint}")
    print(render.markdown(_text(args.topic)))
    return 0


def topics() -> list[str]:
    """The names of all pages."""
    return sorted(path.stem for path in FOLDER.glob("*.md"))


def _text(topic: str) -> str:
    return (FOLDER / f"{topic}.md").read_text(encoding="utf-8")
