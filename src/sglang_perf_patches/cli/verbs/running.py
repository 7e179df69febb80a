"""``run``: a command with patches active in it and in every Python that it starts."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from ... import bootstrap, sets
from ...judge import verdict
from ...model import selection
from . import is_lost, selected, tree_at


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "run",
        help="run a command with patches active in it and in every Python it starts",
        description="Works on any release, also on those that load no plugins (before 0.5.11).",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...")
    parser.set_defaults(function=_run)


def _run(given: argparse.Namespace) -> int:
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        print("sglang-perf-patches: run needs a command", file=sys.stderr)
        return 2
    environment = dict(os.environ)
    chosen = selected()
    if chosen.chosen:
        verdicts = verdict.judge_each(sets.load(), tree_at(None))
        lost = [judged for judged in verdicts if is_lost(chosen, judged)]
        if lost and selection.strict_from_environment():
            line = f"{lost[0].patch.id} is {lost[0].word}: {lost[0].reason}"
            print(f"sglang-perf-patches: {line}", file=sys.stderr)
            return 1
        environment["PYTHONPATH"] = _python_path(environment.get("PYTHONPATH", ""))
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        # As shells do: 127 where there is no such command, 126 where it can't be run.
        print(f"sglang-perf-patches: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _python_path(present: str) -> str:
    """PYTHONPATH with the bootstrap folder first, and there only."""
    ours = os.fspath(bootstrap.FOLDER)
    others = [place for place in present.split(os.pathsep) if place and place != ours]
    return os.pathsep.join([ours, *others])
