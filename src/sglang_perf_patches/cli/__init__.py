"""The command ``sglang-perf-patches``; its verbs are in `verbs`, how it shows text in `render`.

Exit codes: 0 fine; 1 something chosen by name is refused, in conflict or failed, a patch named in
full is absent or can't be verified, nothing could be verified, an upgrade would lose a chosen
patch, or stock and patched differ; 2 bad usage, no sglang, not a sglang tree. ``run`` ends as its
command does.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any

from .. import __version__
from ..model.errors import OperatorError
from . import render

_VERBS = {
    "list": ("listing", "what each patch will do here, or with another sglang"),
    "explain": ("explaining", "a patch or a set: why, how, its gain, what it changes"),
    "status": ("status", "what is live in your running sglang servers"),
    "doctor": (
        "doctoring",
        "what the patches do in a server, before it boots; whether all is well here; what an "
        "upgrade would change",
    ),
    "verify": ("verifying", "compare with stock, bit by bit, on this machine's device"),
    "bench": (
        "benching_server",
        "bench server: A/B of your own server, with and without patches, or any settings",
    ),
    "help": ("helping", "a page about the patches, the commands, the states …"),
    "run": (
        "running",
        "run a command with patches active in it and in every Python that it starts",
    ),
}
"""Verb → its module and its help text. Only the module of the verb in use is imported."""

_ASK = "sglang-perf-patches doctor -- COMMAND"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; every bad input is one sentence on stderr."""
    render.be_tolerant()
    words = _with_verb(list(sys.argv[1:] if arguments is None else arguments))
    if sys.stdout is None and words[0] != "run":  # as after `>&-`; a command may not need it
        render.warn("can't write: standard output is closed")
        return 2
    try:
        code = _run(words)
        print(end="", flush=True)
    except OperatorError as error:
        render.warn(error)
        return 2
    except BrokenPipeError:  # the reader closed the pipe
        _leave_stdout()
        return 0
    except OSError as error:
        what = error.filename
        if what is None:  # it concerns a stream, usually stdout on a full disk
            _leave_stdout()
            what = "can't write"
        render.warn(f"{what}: {error.strerror or error}")
        return 2
    except KeyboardInterrupt:
        render.warn("interrupted")
        return 130
    return code


def _run(words: list[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        with contextlib.suppress(ImportError):
            import argcomplete

            argcomplete.autocomplete(_parser(_VERBS), always_complete_options="long")
    if words[:2] == ["bench", "server"]:  # the rest is the user's own command
        server: Any = import_module(f"{__name__}.verbs.benching_server")
        return int(server.main(words[2:]))
    command = None
    if words[0] == "doctor" and "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    if words[0] == "list" and "--" in words:
        raise OperatorError(f"list takes no command: use {_ASK}")
    parser = _parser(words[:1])
    if words[0] not in _VERBS and not words[0].startswith("-"):
        near = difflib.get_close_matches(words[0], _VERBS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"for a server's command: {_ASK}"
        parser.error(f"there is no verb {words[0]!r}: {hint}")
    args, unknown = parser.parse_known_args(words)
    if unknown:
        hints = {
            "doctor": "" if command else f": put `--` before the command, as in {_ASK}",
            "list": f"; for a server's command: {_ASK}",
        }
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}{hints.get(words[0], '')}")
    if words[0] == "doctor":
        args.command = command
    return int(args.function(args))


def _parser(loaded: Collection[str]) -> argparse.ArgumentParser:
    """The parser of all verbs, with the options of those in `loaded`."""
    parser = argparse.ArgumentParser(
        prog="sglang-perf-patches",
        description="Performance fixes for an unmodified, released sglang.",
        epilog=f"Start with: {_ASK}. Without a verb, or with --list: list. SGLANG_PERF_PATCHES "
        "chooses the patches.",
    )
    parser.add_argument("--version", action="version", version=f"sglang-perf-patches {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (module, help_text) in _VERBS.items():
        if name not in loaded:
            verbs.add_parser(name, help=help_text)
            continue
        verb: Any = import_module(f"{__name__}.verbs.{module}")
        of_verb = verbs.add_parser(name, help=help_text, **verb.PARSER)
        verb.add_options(of_verb)
        of_verb.set_defaults(parser=of_verb, function=verb.run)
    return parser


def _with_verb(words: list[str]) -> list[str]:
    """Insert the default verb: ``--list`` is an alias, and without a verb it is ``list``."""
    if "--list" in words and not (set(_VERBS) - {"list"}) & set(words):
        return ["list", *(word for word in words if word not in {"--list", "list"})]
    asks_for_help = words[:1] in (["-h"], ["--help"], ["--version"])
    is_verb = asks_for_help or (words and not words[0].startswith("-"))
    return words if is_verb else ["list", *words]


def _leave_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's flush at the end can't fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
