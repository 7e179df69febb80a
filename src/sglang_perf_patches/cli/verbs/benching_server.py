"""``bench server``: an operator's own server in turns, with and without patches or as described."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...bench_server import BenchError, boot, command, load, machine, processes, redact, sides
from ...bench_server import outcome as outcomes
from ...bench_server.sides import Side
from ...model.errors import OperatorError
from .. import entry_point, interpreter, render
from . import add_json, selected, tree_at

PARSER: dict[str, Any] = {"epilog": "Its options: sglang-perf-patches bench server --help."}

_DESCRIPTION = """
Start your own server in turns with and without patches, or with any other settings, and compare.
It boots six times, three on each side. The short form, --turns 1, boots twice: it shows whether the
patches go live and the tokens are equal, and draws no conclusion about speed.
"""
_EPILOG = """
Every other option before -- goes to sglang's own bench_serving: --num-prompts, --request-rate,
--dataset-name, --dataset-path ... The default load is 128 prompts of random token ids.

One side has the patches of SGLANG_PERF_PATCHES, or all exact patches if it is not set. The other
side has none. Both run the same command on the same port (without --port: 30000), one boot at a
time.

With --b it compares any settings: side a is the command as it is, or with what --a adds, and side b
the command with what --b adds. Write variables first, then flags of the server, in quotes. Flags
are appended to the command, so they override its own. A side without SGLANG_PERF_PATCHES uses the
value of the environment. In the JSON, `stock` is side a and `patched` is side b.

A disaggregated server needs its other servers: put a script that starts prefill, decode and router
after --, and give the router's address with --url.

Exit codes: 0 measured, with equal greedy tokens; 1 no conclusion, different tokens, a failed boot,
or a patch that you named is not live; 2 it could not start; 128 + N after signal N.

  sglang-perf-patches bench server -- python -m sglang.launch_server --model-path MODEL
  SGLANG_PERF_PATCHES=mla sglang-perf-patches bench server --turns 5 --request-rate 4 \\
      -- sglang serve --model-path MODEL --port 30000
  sglang-perf-patches bench server --b "--schedule-conservativeness 0.5" -- COMMAND
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be measured; the words after ``bench server`` have a parser of their own."""
    parser.add_argument("what", choices=("server",))


def run(_args: argparse.Namespace) -> int:
    """Run ``bench server`` without further words."""
    return main([])


def main(words: Sequence[str]) -> int:
    """Run ``bench server`` with the words after it; OperatorError if it can't start with them."""
    at = words.index("--") if "--" in words else len(words)
    parser = _parser()
    args, options = parser.parse_known_args([*_with_equals(words[:at])])
    if args.turns < 1:
        parser.error("--turns must be 1 or more")
    if not words[at + 1 :]:
        parser.error("put `--` before the server's command, at the end")
    if options and not options[0].startswith("-"):
        parser.error(f"{options[0]}: choose patches with SGLANG_PERF_PATCHES")
    processes.exit_on_signals()
    try:
        return _compare(args, options, words[at + 1 :])
    except BenchError as error:
        render.warn(error)
        return 1
    except SystemExit:  # after a signal
        print("\nsglang-perf-patches: interrupted; nothing is left running", file=sys.stderr)
        raise


def _compare(args: argparse.Namespace, options: Sequence[str], words: Sequence[str]) -> int:
    default = selected()
    if args.a is not None or args.b is not None:
        compared = sides.described(args.a, args.b, default.text, words)
    elif not default.ids:
        raise OperatorError("SGLANG_PERF_PATCHES chooses no patch: there is nothing to compare")
    else:
        compared = Side("stock"), Side("patched", default.text, needs_live=True)
    _, chosen = (selected(each.selection) for each in compared)
    tree = tree_at()
    served = command.parse(words, args.url)
    if not entry_point.is_loaded_by(tree):
        run = (sys.executable, "-m", "sglang_perf_patches", "run")
        served = replace(served, command=(*run, *words))
    _require_patches(compared, served.command)
    command.require_free(served)
    sent = load.of(tree, options)
    began = time.monotonic()

    def say(line: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        print(f"[{minutes:3}:{seconds:02}] {line}", file=sys.stderr, flush=True)

    say(f"checking that {sent.module} runs here and knows these options")
    sent.check()
    folder = Path(tempfile.mkdtemp(prefix="bench-server-"))
    plan = boot.Plan(served, sent, folder, args.timeout)
    short = "; the short form is --turns 1" if args.turns > 1 else ""
    say(f"{2 * args.turns} boots of this server{short}; logs are in {folder}")
    taken, stopped = boot.in_turns(plan, compared, args.turns, say)
    if stopped and not taken:
        raise BenchError(stopped)
    if stopped:
        render.warn(stopped)
    about = {
        "sglang": tree.version,
        "machine": machine.facts(),
        "command": redact.shown(words),
        "load": redact.shown(sent.options),
    }
    result = outcomes.compared(taken, compared, chosen, about=about, stopped=stopped)
    print(outcomes.to_json(result) if args.json else outcomes.to_text(result), flush=True)
    return outcomes.exit_code(result)


def _with_equals(words: Sequence[str]) -> Iterator[str]:
    """``--b TEXT`` as ``--b=TEXT``, because argparse refuses a value that looks like an option."""
    rest = iter(words)
    for word in rest:
        text = next(rest, None) if word in ("--a", "--b") else None
        yield word if text is None else f"{word}={text}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sglang-perf-patches bench server",
        usage="%(prog)s [--a TEXT] [--b TEXT] [--turns N] [options] -- COMMAND ...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    turns = "boots of each side (default: 3)"
    add("--turns", type=int, default=3, metavar="N", help=turns)
    adds = "what side a adds to the command: variables, then flags, in quotes"
    add("--a", metavar="TEXT", help=adds)
    add("--b", metavar="TEXT", help="the same for side b")
    url = "where the server listens, if COMMAND is a script without --port"
    add("--url", metavar="URL", help=url)
    limit = "seconds that a boot or a load may take (default: 1800)"
    add("--timeout", type=float, default=1800.0, metavar="S", help=limit)
    add_json(parser)
    return parser


def _require_patches(compared: Sequence[Side], words: Sequence[str]) -> None:
    """Check before a boot that the command's server would get patches, if a side needs them."""
    if not command.is_of_sglang(words):
        return  # what another program starts, and how, is not known
    for side in compared:
        why = interpreter.obstacle(words, side.environment) if side.is_patched else ""
        if why and side.needs_live:
            raise OperatorError(f"{side.name}: {why}")
        if why:
            render.warn(f"{side.name}: {why}")
