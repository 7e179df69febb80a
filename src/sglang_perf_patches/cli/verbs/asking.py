"""``doctor -- COMMAND`` and ``list -- COMMAND``: what the patches will do in that server."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ... import faults
from ...compat.source import Tree
from ...model import switch
from ...model.feature import Setup
from ...model.selection import Selection
from .. import entry_point, interpreter, patch_page, render
from ..ask import answer, command, gpus
from ..ask.answer import Fate
from ..interpreter import Place
from ..table import LIVE, OPT_IN, of_patches
from . import judged, known_faults, selected, tree_at

_SHOWN = (LIVE, "gated", "refused", answer.OFF, OPT_IN)
_ORDER = (*_SHOWN, "not needed", "built-in", "absent")
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


def run(args: argparse.Namespace, *, in_short: bool) -> int:
    """Print the state of each patch; exit code 1 if one chosen by name will not be live."""
    asked = command.read(args.command, os.environ)
    gpu = _gpu(args.gpu, asked)
    place = _place(args, asked)
    tree = place.tree
    selection = selected(asked.environment.get(switch.VARIABLE, "all"))
    obstacle = "" if asked.under_run else entry_point.obstacle(tree, asked.environment)
    obstacle = place.obstacle or obstacle
    told = answer.ask(asked, gpu, place, "none" if obstacle else selection.text)
    setup, conditions = told.setup, told.conditions
    verdicts = judged(tree)
    is_here = args.gpu is None and gpu is not None and not gpu.is_assumed
    found = answer.fates(selection, verdicts, setup, is_here=is_here)
    live = {one.patch for one in found if one.state == LIVE and not obstacle}
    known = faults.found(tree.version, conditions, live)
    if args.json:
        of_server = [one.data(is_sure=is_sure) for one, is_sure in known]
        data = _data(asked, gpu, tree, selection, setup, found)
        data = {**data, "loads_plugin": not obstacle, "faults": of_server}
        remarks = _remarks(asked, place, told.unasked)
        print(json.dumps({**data, "remarks": remarks}, indent=2))
    else:
        shown = [one for one in found if args.all or _is_shown(one)]
        machine = gpu.text if gpu else "no GPU"
        if command.computes_by_mlx(asked.environment) and sys.platform != "darwin":
            machine = "a Mac, which SGLANG_USE_MLX=1 needs"
        parts = [_head(machine, tree, selection, found)]
        if shown:
            rows = [(one.patch, one.state, (one.reason,)) for one in shown]
            parts.append(of_patches(rows, verdicts, tree.version, with_cost=not in_short))
        if len(shown) < len(found):
            parts.append(f"{len(found) - len(shown)} more: add --all")
        parts += _notes(obstacle, is_live=bool(live))
        parts += map(render.filled, _remarks(asked, place, told.unasked))
        parts.append(known_faults.of_server(tree.version, known))
        print("\n\n".join(filter(None, parts)))
    return 1 if any(selection.is_lost(one.patch, one.state) for one in found) else 0


def reject_gpu(args: argparse.Namespace) -> None:
    """Refuse ``--gpu`` without a server's command."""
    if args.gpu is not None:
        args.parser.error("--gpu needs the server's command after --")


def _gpu(name: str | None, asked: command.Asked) -> gpus.Gpu | None:
    if name is not None:
        return gpus.named(name)
    has_none = sys.platform == "darwin" or command.computes_by_mlx(asked.environment)
    words = [*asked.arguments, ""]
    is_cpu = "--device=cpu" in words or ("--device", "cpu") in itertools.pairwise(words)
    return None if has_none or is_cpu else gpus.here() or gpus.assumed()


def _is_shown(fate: Fate) -> bool:
    return fate.state in _SHOWN and fate.would in {"", LIVE}


def _head(machine: str, tree: Tree, selection: Selection, found: Sequence[Fate]) -> str:
    counted = Counter(one.state for one in found)
    none = "" if counted[LIVE] else "No patch will be live in this server: "
    return (
        none
        + ", ".join(f"{counted[word]} {word}" for word in _ORDER if counted[word])
        + f"\nsglang {tree.version} at {tree.root}, with SGLANG_PERF_PATCHES="
        + (selection.text or "(empty)")
        + f"\non {machine}"
    )


def _place(args: argparse.Namespace, asked: command.Asked) -> Place:
    """The sglang that the options name, asked by this Python; else that of the command."""
    if args.sglang_path is None and args.sglang_version is None:
        return interpreter.place(asked)
    return Place(tree_at(args.sglang_path, args.sglang_version))


def _remarks(asked: command.Asked, place: Place, unasked: Sequence[str]) -> list[str]:
    """What of the command, or of its machine, the answer does not know."""
    remarks = [place.note]
    remarks += [f"Not part of the server's command, and ignored: {one}" for one in asked.ignored]
    remarks += [f"Not asked: {one}" for one in unasked]
    return list(filter(None, remarks))


def _notes(obstacle: str, *, is_live: bool) -> list[str]:
    """Why the server may not load the plugin, and what `live` means if a patch is."""
    parts = []
    if obstacle:
        parts.append(render.filled(obstacle))
    if is_live:
        parts.append(
            render.filled(
                "`live`: the patch will be on in this server. To turn one off, set "
                f"{switch.VARIABLE}=all,-PATCH. To measure whether they help: "
                "sglang-perf-patches bench server -- COMMAND"
            )
        )
    return parts


def _data(
    asked: command.Asked,
    gpu: gpus.Gpu | None,
    tree: Tree,
    selection: Selection,
    setup: Setup,
    found: Sequence[Fate],
) -> Mapping[str, Any]:
    return {
        "sglang": {"version": tree.version, "path": str(tree.root)},
        "selection": selection.text,
        "gpu": gpu and asdict(gpu),
        "features": dict(setup.on),
        "patches": [
            {
                "id": one.patch,
                "state": one.state,
                "reason": one.reason,
                "if_chosen": one.would or one.state,
                "short": short and short._asdict(),
            }
            for one in found
            for short in [patch_page.read(one.patch).on(tree.version)]
        ],
    }
