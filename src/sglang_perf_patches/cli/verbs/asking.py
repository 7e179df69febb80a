"""``doctor -- COMMAND``: what the patches will do in that server."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from ... import faults, patch_page
from ...compat.source import Tree
from ...compat.verdict import Verdict
from ...model import switch
from ...model.feature import Setup
from ...model.selection import Selection
from ...patch_page import Headline
from .. import entry_point, interpreter, render
from ..ask import answer, command, gpus
from ..ask.answer import Outlook
from ..interpreter import Place
from ..table import LIVE, OPT_IN, of_patches
from . import judged, known_faults, selected, tree_at

_SHOWN = (LIVE, "gated", "refused", answer.OFF, OPT_IN)
_ORDER = (*_SHOWN, "not needed", "built-in", "absent")
_NO_GAIN = "no gain was measured for this set-up"
_LIVE_MEANS = (
    "`live`: the patch will be on in this server. To turn one off, set "
    f"{switch.VARIABLE}=all,-PATCH. To measure whether they help: "
    "sglang-perf-patches bench server -- COMMAND"
)
HELP = (
    "With a server's command after -- it prints what each patch will do in that server. sglang's "
    "own code reads the command's arguments and the model's config.json. No server is started, and "
    "no GPU is needed."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option for the server's GPU."""
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="with -- COMMAND: the server's GPU, if it is not the one here: "
        f"{', '.join(gpus.KINDS)}, or {gpus.NONE} for a CPU. To judge a Mac's server on "
        "another machine, add --device cpu to COMMAND",
    )


def run(args: argparse.Namespace) -> int:
    """Print the state of each patch; exit code 1 if one chosen by name will not be live."""
    asked = command.parse(args.command, os.environ)
    gpu = _gpu(args.gpu, asked)
    place = _place(args, asked)
    tree = place.tree
    selection = selected(asked.environment.get(switch.VARIABLE, "all"))
    obstacle = "" if asked.under_run else entry_point.why_not_loaded(tree, asked.environment)
    obstacle = place.obstacle or obstacle
    told = answer.ask(asked, gpu, place, "none" if obstacle else selection.text)
    setup, conditions = told.setup, told.conditions
    verdicts = judged(tree)
    is_here = args.gpu is None and gpu is not None and not gpu.is_assumed
    found = answer.outlooks(selection, verdicts, setup, is_here=is_here)
    live = {one.patch for one in found if one.state == LIVE and not obstacle}
    known = faults.found(tree.version, conditions, live)
    headlines = _headlines(found, verdicts, tree.version, setup)
    lost = [one for one in found if selection.is_unavailable(one.patch, one.state)]
    is_strict = switch.is_strict(asked.environment)
    if args.json:
        data = {
            "sglang": {"version": tree.version, "path": str(tree.root)},
            "selection": selection.text,
            "gpu": gpu and asdict(gpu),
            "features": dict(setup.on),
            "loads_plugin": not obstacle,
            "strict_exits": bool(is_strict and lost and not obstacle),
            "patches": [
                {
                    "id": one.patch,
                    "state": one.state,
                    "reason": one.reason,
                    "if_chosen": one.would or one.state,
                    "short": (headline := headlines[one.patch]) and headline._asdict(),
                }
                for one in found
            ],
            "faults": [one.data(is_sure=is_sure) for one, is_sure in known],
            "remarks": _remarks(asked, place, told.unasked),
        }
        print(json.dumps(data, indent=2))
    else:
        shown = [one for one in found if args.all or _is_shown(one)]
        machine = gpu.text if gpu else "no GPU"
        if command.computes_by_mlx(asked.environment) and sys.platform != "darwin":
            machine = "a Mac, which SGLANG_USE_MLX=1 needs"
        parts = [_head(machine, tree, selection, found, is_loaded=not obstacle)]
        if is_strict and not obstacle:
            parts.append(render.filled(_strictly(lost)))
        if shown:
            rows = [(one.patch, one.state, (one.reason,)) for one in shown]
            parts.append(of_patches(rows, verdicts, tree.version, headlines))
        if len(shown) < len(found):
            parts.append(f"{len(found) - len(shown)} more: add --all")
        parts.append(render.filled(obstacle) if obstacle else "")
        if live:
            parts.append(render.filled(_LIVE_MEANS))
        parts += map(render.filled, _remarks(asked, place, told.unasked))
        parts.append(known_faults.of_server(tree.version, known))
        print("\n\n".join(filter(None, parts)))
    return 1 if lost else 0


def reject_gpu(args: argparse.Namespace) -> None:
    """Refuse ``--gpu`` without a server's command."""
    if args.gpu is not None:
        args.parser.error("--gpu needs the server's command after --")


def _gpu(name: str | None, asked: command.ParsedCommand) -> gpus.Gpu | None:
    if name is not None:
        return gpus.named(name)
    has_none = sys.platform == "darwin" or command.computes_by_mlx(asked.environment)
    words = [*asked.arguments, ""]
    is_cpu = "--device=cpu" in words or ("--device", "cpu") in itertools.pairwise(words)
    return None if has_none or is_cpu else gpus.here() or gpus.assumed()


def _is_shown(outlook: Outlook) -> bool:
    return outlook.state in _SHOWN and outlook.would in {"", LIVE}


def _strictly(lost: Sequence[Outlook]) -> str:
    """What ``SGLANG_PERF_PATCHES_STRICT`` makes of this server."""
    why = "; ".join(f"{one.patch} is {one.state}: {one.reason}" for one in lost)
    does = f"this server would exit: {why}" if lost else "no patch keeps this server from starting"
    return f"With {switch.STRICT_VARIABLE}=1 {does}."


def _head(
    machine: str, tree: Tree, selection: Selection, found: Sequence[Outlook], *, is_loaded: bool
) -> str:
    counted = Counter(one.state for one in found)
    none = "" if counted[LIVE] else "No patch will be live in this server: "
    if not is_loaded:
        none = "No patch will be live: this server does not load them (see below). If it did: "
    return (
        none
        + ", ".join(f"{counted[word]} {word}" for word in _ORDER if counted[word])
        + f"\nsglang {tree.version} at {tree.root}, with SGLANG_PERF_PATCHES="
        + (selection.text or "(empty)")
        + f"\non {machine}"
    )


def _place(args: argparse.Namespace, asked: command.ParsedCommand) -> Place:
    """The sglang that the options name, read by this Python; else the command's own."""
    if args.sglang_path is None and args.sglang_version is None:
        return interpreter.place(asked)
    return Place(tree_at(args.sglang_path, args.sglang_version))


def _remarks(asked: command.ParsedCommand, place: Place, unasked: Sequence[str]) -> list[str]:
    """What of the command, or of its machine, the answer does not know."""
    remarks = [place.note]
    remarks += [f"Not part of the server's command, and ignored: {one}" for one in asked.ignored]
    remarks += [f"Not asked: {one}" for one in unasked]
    return list(filter(None, remarks))


def _headlines(
    found: Sequence[Outlook], verdicts: Iterable[Verdict], release: str, setup: Setup
) -> dict[str, Headline | None]:
    """The row of each patch's page, with the gain for this set-up; None if it would not be live."""
    by_id = {one.patch.id: one.patch for one in verdicts}
    headlines: dict[str, Headline | None] = {}
    for one in found:
        headline = None
        if LIVE in (one.state, one.would):
            headline = patch_page.read(one.patch).headline(release)
            if headline is not None and not setup.meets(by_id[one.patch].gain_with):
                headline = headline._replace(gain=_NO_GAIN)
        headlines[one.patch] = headline
    return headlines
