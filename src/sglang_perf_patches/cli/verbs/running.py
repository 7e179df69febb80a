"""``run``: a command with patches active in it and in every Python that it starts."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ... import bootstrap
from ...model import switch
from .. import entry_point, interpreter, render
from . import judged, selected, tree_at

PARSER: dict[str, Any] = {
    "description": "Works on any release, also on those that load no plugins (before 0.5.11). A "
    "Python that is started with -I, -E or -S gets no patches: it ignores what `run` sets in the "
    "environment. With SGLANG_PERF_PATCHES_STRICT=1 such a COMMAND is not started."
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add COMMAND, which is passed on unchanged."""
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...")


def run(args: argparse.Namespace) -> int:
    """Replace this process by the command (exec); it returns, an exit code, only if it can't."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        args.parser.error("a command is missing")
    environment = dict(os.environ)
    selection = selected()
    if selection.ids:
        tree = tree_at()
        is_strict = switch.is_strict()
        for one in judged(tree) if is_strict else ():
            if selection.is_unavailable(one.patch.id, one.word):
                render.warn(f"{one.patch.id} is {one.word}: {one.reason}")
                return 1
        if option := interpreter.isolating_flag(command):
            ignores = "this Python ignores what `run` sets, so it gets no patches"
            render.warn(f"{ignores}: remove {option}")
            if is_strict:
                return 1
        allowed = environment.get("SGLANG_PLUGINS", "")
        if entry_point.is_loaded_by(tree) and entry_point.is_filtered(allowed):
            render.warn(f"{entry_point.FILTERED}; `run` activates its patches all the same")
        # The bootstrap folder comes first, and is nowhere else.
        ours = os.fspath(bootstrap.FOLDER)
        places = environment.get("PYTHONPATH", "").split(os.pathsep)
        others = [place for place in places if place not in {"", ours}]
        environment["PYTHONPATH"] = os.pathsep.join([ours, *others])
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        # Like shells: 127 if the command does not exist, 126 if it can't run.
        render.warn(f"{command[0]}: {error.strerror}")
        return 127 if isinstance(error, FileNotFoundError) else 126
