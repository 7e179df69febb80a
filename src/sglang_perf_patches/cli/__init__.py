"""The command ``sglang-perf-patches``; its verbs are in `verbs`.

Exit codes: 0 fine; 1 something chosen by name is refused, in conflict or failed, a patch named in
full is absent or can't be verified, an upgrade would lose a chosen patch, or stock and patched
differ; 2 bad usage, no sglang, not a sglang tree. ``run`` ends as its command does.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .. import __version__, sets
from ..bench import report
from ..judge import downloads, source
from ..model.selection import SelectionError
from ..seen import records as record
from .verbs import benching, doctoring, explaining, listing, running, status, verifying

_VERBS = (listing, explaining, status, doctoring, verifying, benching, running)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; every bad input is one sentence on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parser, names = _parser()
        given, unknown = parser.parse_known_args(_with_verb(words, names))
        if unknown and given.verb != "bench":
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        given.options = unknown
        code: int = given.function(given)
    except (
        SelectionError,
        source.TreeError,
        downloads.DownloadError,
        sets.FingerprintError,
        record.RecordError,
        report.PageError,
    ) as error:
        print(f"sglang-perf-patches: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parser() -> tuple[argparse.ArgumentParser, set[str]]:
    """The parser, and the names of the verbs."""
    parser = argparse.ArgumentParser(
        prog="sglang-perf-patches",
        description="Performance fixes for an unmodified, released sglang.",
        epilog="No verb, or --list, means list. Patches are chosen by SGLANG_PERF_PATCHES.",
    )
    parser.add_argument("--version", action="version", version=f"sglang-perf-patches {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in _VERBS:
        verb.add(verbs)
    return parser, set(verbs.choices)


def _with_verb(words: list[str], names: set[str]) -> list[str]:
    """Put in the default verb: ``--list`` is an alias, and options alone mean ``list``."""
    if "--list" in words and not (names - {"list"}) & set(words):
        words = [word for word in words if word not in {"--list", "list"}]
        return ["list", *words]
    asks_for_help = words[:1] in (["-h"], ["--help"], ["--version"])
    if not words or (words[0].startswith("-") and not asks_for_help):
        return ["list", *words]
    return words
