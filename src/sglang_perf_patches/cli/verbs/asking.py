"""``doctor -- COMMAND``: what the patches will do in that server, by a running server's rule."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from ... import faults, patch_page, verified, worker
from ...compat.verdict import Verdict
from ...faults.fault import Fault
from ...model import switch
from ...model.errors import OperatorError
from ...model.feature import Setup
from ...model.patch import Patch
from ...model.selection import Selection
from ...model.setups import ruling
from ...patch_page import Headline
from .. import interpreter, render
from ..ask import command, gpus
from ..ask.front import ParsedCommand
from ..interpreter import Place
from ..table import LIVE, OPT_IN, cost, entry, prevents
from . import judged, selected, tree_at

_LIMIT_S = 60.0
"""For both tries together, on a quiet machine."""

OFF = "off"
_NO_GAIN = "no gain was measured for this set-up"
_LIVE_TITLES = (
    "Faults prevented",
    "Gains in similar set-ups (stock → patched)",
    "Live, but no gain was measured in a similar set-up",
)
_TURNED_OFF = {
    "gated": "Turned off by this set-up",
    "refused": "Refused: this code is not what they were tested on",
}
_ONLY_COUNTED = {
    OFF: ("Not chosen", "not chosen"),
    OPT_IN: ("Opt-in", "opt-in"),
    "not needed": ("Not needed", "not needed in this set-up"),
    "built-in": ("Built in", "already in this release"),
    "absent": ("Absent", "for other releases only"),
}
"""State of what only ``--all`` shows → its title there, and what else is said of their number."""
_TITLES = _TURNED_OFF | {state: title for state, (title, _) in _ONLY_COUNTED.items()}
HELP = (
    "With a server's command after -- it prints what each patch will do in that server. sglang's "
    "own code reads the command's arguments and the model's config.json. No server is started, and "
    "no GPU is needed."
)


class Outlook(NamedTuple):
    """What becomes of a patch."""

    patch: str
    state: str  # as a process would report it; `OPT_IN` for a policy that is not chosen
    reason: str  # why it is not live; "" if it is
    would: str = ""  # the state of an unchosen patch if it were chosen; "" for a chosen one
    headline: Headline | None = None  # of its page, for this set-up, if it is or would be live


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option for the server's GPU."""
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="with -- COMMAND: the server's GPU, if it is not the one here: "
        f"{', '.join(gpus.KINDS)}, or {gpus.NONE} for a CPU. A Mac's server needs none: "
        "put SGLANG_USE_MLX=1 in front of COMMAND",
    )


def run(args: argparse.Namespace) -> int:
    """Print the state of each patch; exit code 1 if one chosen by name will not be live."""
    asked = command.parse(args.command, os.environ)
    gpu = _gpu(args.gpu, asked)
    if args.sglang_path is None and args.sglang_version is None:
        place = interpreter.place(asked)
    else:
        place = interpreter.of_tree(tree_at(args.sglang_path, args.sglang_version), asked)
    tree, obstacle = place.tree, place.obstacle
    selection = selected(asked.environment.get(switch.VARIABLE, "all"))
    active = "none" if obstacle else selection.text
    setup, conditions, unasked = ask(asked, gpu, place, active)
    verdicts = judged(tree)
    is_here = args.gpu is None and gpu is not None and not gpu.is_assumed
    patches = {one.patch.id: one.patch for one in verdicts}
    found = [
        one._replace(headline=_headline(one, patches[one.patch], tree.version, setup))
        for one in outlooks(selection, verdicts, setup, is_here=is_here)
    ]
    live = {one.patch for one in found if one.state == LIVE and not obstacle}
    could = faults.found(tree.version, conditions)
    known = faults.found(tree.version, conditions, live)
    lost = [one for one in found if selection.is_unavailable(one.patch, one.state)]
    is_strict = switch.is_strict(asked.environment) and not obstacle
    remarks = [
        *([place.note] if place.note else []),
        *(f"Not part of the server's command, and ignored: {one}" for one in asked.ignored),
        *(f"Not asked: {one}" for one in unasked),
    ]
    if args.json:
        data = {
            "sglang": {"version": tree.version, "path": str(tree.root)},
            "selection": selection.text,
            "gpu": gpu and asdict(gpu),
            "features": dict(setup.on),
            "loads_plugin": not obstacle,
            "strict_exits": bool(is_strict and lost),
            "patches": [
                {
                    "id": one.patch,
                    "state": one.state,
                    "reason": one.reason,
                    "if_chosen": one.would or one.state,
                    "short": one.headline and one.headline._asdict(),
                }
                for one in found
            ],
            "faults": [one.data(tree.version, is_sure=is_sure) for one, is_sure in known],
            "remarks": remarks,
        }
        print(json.dumps(data, indent=2))
    else:
        counted = counted_faults(tree.version, len(could), len(known))
        machine = gpu.text if gpu else "no GPU"
        if command.is_for_another_mac(asked.environment):
            machine = "a Mac (assumed; no patch was ever tested on one)"
        is_set = switch.VARIABLE in asked.environment
        default = "" if is_set else " (the default: all except opt-in)"
        parts = [
            render.filled(f"{_head(len(live), obstacle)} {counted}"),
            f"sglang {tree.version} at {tree.root}\n"
            f"with SGLANG_PERF_PATCHES={selection.text or '(empty)'}{default}, on {machine}",
            "If the server loads them:" if obstacle else "",
            render.filled(_strictly(lost)) if is_strict else "",
            *_sections(found, patches, show_all=args.all),
            remaining_faults(tree.version, known, {one.patch: one for one in found}),
            *map(render.filled, remarks),
            "" if args.all else render.filled(_hidden(found)),
            _next_steps(found, patches, setup) if live else "",
        ]
        print("\n\n".join(filter(None, parts)))
    return 1 if lost else 0


def ask(
    asked: ParsedCommand, gpu: gpus.Gpu | None, place: Place, selection: str
) -> tuple[Setup, Mapping[str, bool], list[str]]:
    """What a release makes of a command whose server activates the patches of `selection`.

    A child process resolves its arguments. It answers with the server's features and uses, what
    `faults.conditions` returns for it, and what could not be asked here, in words. An OperatorError
    tells that the release refuses the arguments, or why they could not be resolved.
    """
    release, environment = place.tree.version, dict(asked.environment)
    if not place.python:
        own = environment.get("PYTHONPATH", "").split(os.pathsep)
        search = [str(place.tree.root.parent), *filter(None, [*own, *sys.path])]
        environment["PYTHONPATH"] = os.pathsep.join(search)
    task = {
        "release": release,
        "python": place.python[0] if place.python else "this Python",
        "gpu": gpu and asdict(gpu),
        "selection": selection,
        "lenient": asked.by_dynamo,
    }
    # In proportion, if more want to run than there are CPUs.
    limit_s = _LIMIT_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    end = time.monotonic() + limit_s
    line: Mapping[str, Any] = {}
    for minimal_imports in (True, False):
        with worker.Child(
            "sglang_perf_patches.cli.ask.resolver",
            [json.dumps({**task, "minimal_imports": minimal_imports}), *asked.arguments],
            limit_s=max(end - time.monotonic(), 1),
            environment=environment,
            python=place.python or (sys.executable,),
        ) as child:
            line = next(iter(child), line)  # if the second try is late, the first one's failure
            ended = child.why_it_ended()
        if child.was_late and not line:
            raise OperatorError(
                f"sglang {release} gave no answer in {limit_s:.0f} s. The first answer takes "
                "longest, because Python compiles torch and sglang: try again"
            )
        if "on" in line:
            setup = Setup(line["on"], line["lacking"], frozenset(line["having"]))
            return setup, line["faults"], line["notes"]
        if not line.get("again"):
            break
    raise OperatorError(line.get("why", f"sglang {release} could not be asked: {ended}"))


def outlooks(
    selection: Selection, verdicts: Iterable[Verdict], setup: Setup, *, is_here: bool = False
) -> list[Outlook]:
    """The outlook of each patch on a server, in declared order.

    `is_here`: its GPUs are this machine's, so that records of ``verify`` count.
    """
    by_id = {verdict.patch.id: verdict for verdict in verdicts}

    def lacking(patch: Patch) -> str | None:
        return verified.lacking(by_id[patch.id]) if is_here else verified.hint(patch.id)

    found = []
    for name, verdict in by_id.items():
        if verdict.word != "applies":
            found.append(Outlook(name, verdict.word, verdict.reason))
            continue
        needed = [by_id[each] for each in verdict.patch.requires]
        acting = [each.patch for each in needed if each.word == "applies"]
        patch = verdict.patch.proven_in(verdict.variant)
        state, reason = ruling(patch, acting, setup, lacking) or (LIVE, "")
        if name in selection.ids:
            found.append(Outlook(name, state, reason))
        else:
            word = OFF if patch.is_default else OPT_IN
            found.append(Outlook(name, word, reason or "not chosen", state))
    return found


def _gpu(name: str | None, asked: ParsedCommand) -> gpus.Gpu | None:
    if name is not None:
        return gpus.named(name)
    has_none = sys.platform == "darwin" or command.computes_by_mlx(asked.environment)
    words = [*asked.arguments, ""]
    is_cpu = "--device=cpu" in words or ("--device", "cpu") in itertools.pairwise(words)
    return None if has_none or is_cpu else gpus.here() or gpus.ASSUMED


def _strictly(lost: Sequence[Outlook]) -> str:
    """What ``SGLANG_PERF_PATCHES_STRICT`` makes of this server."""
    why = "; ".join(f"{one.patch} is {one.state}: {one.reason}" for one in lost)
    does = f"this server would exit: {why}" if lost else "no patch keeps this server from starting"
    return f"With {switch.STRICT_VARIABLE}=1 {does}."


def _head(live: int, obstacle: str) -> str:
    if obstacle:
        return f"No patch will be live, because this server does not load them. {obstacle}"
    count = {0: "No patch", 1: "1 patch"}.get(live, f"{live} patches")
    return f"{count} will be live in this server."


def _sections(
    found: Sequence[Outlook], patches: Mapping[str, Patch], *, show_all: bool
) -> Iterator[str]:
    """What is prevented, gained and turned off; with `show_all` also what is off or not needed."""
    by_title: dict[str, list[str]] = {title: [] for title in (*_LIVE_TITLES, *_TITLES.values())}
    for one in found:
        headline, patch = one.headline, patches[one.patch]
        if one.state == LIVE:
            is_measured = headline is not None and headline.gain != _NO_GAIN
            title = _LIVE_TITLES[0 if prevents(patch) else 1 if is_measured else 2]
            what = headline.gain if headline and is_measured else patch.summary
            by_title[title].append(entry(f"{one.patch}: {what}", cost(headline)))
        elif show_all or one.state in _TURNED_OFF:
            more = (headline.gain, cost(headline)) if headline else ()
            by_title[_TITLES[one.state]].append(entry(f"{one.patch}: {one.reason}", *more))
    for title, entries in by_title.items():
        if entries:
            yield "\n".join([f"{title}:", *entries])


def _hidden(found: Sequence[Outlook]) -> str:
    """Whether the command turns any patch off, and how many of each state only ``--all`` shows."""
    count = Counter(one.state for one in found)
    none = "" if any(count[word] for word in _TURNED_OFF) else "Your command turns no patch off."
    hidden = ((count[state], words) for state, (_, words) in _ONLY_COUNTED.items())
    rest = ", ".join(f"{number} {words}" for number, words in hidden if number)
    return f"{none} {f'Patches not listed: {rest} (add --all).' if rest else ''}".strip()


def _next_steps(found: Sequence[Outlook], patches: Mapping[str, Patch], setup: Setup) -> str:
    """How to measure what the live patches save, and to choose among them; a line each."""
    live = [one for one in found if one.state == LIVE]
    gaining = [one for one in live if not prevents(patches[one.patch])]
    measured = [one for one in gaining if one.headline and one.headline.gain != _NO_GAIN]
    example = [*measured, *gaining, *live][0].patch
    measure = "sglang-perf-patches bench server -- COMMAND"
    if {"decode-server", "prefill-server"} & (setup.on.keys() | setup.having):
        measure = (
            "sglang-perf-patches bench server --url URL -- SCRIPT\n"
            "  (SCRIPT starts prefill, decode and router; URL is the router's)"
        )
    steps = [f"To measure the gain: {measure}"] if gaining else []
    return "\n".join(
        [
            *steps,
            f"To turn one off: {switch.VARIABLE}=all,-{example}",
            f"To turn on only what you list: {switch.VARIABLE}={example},…",
        ]
    )


def _headline(one: Outlook, patch: Patch, release: str, setup: Setup) -> Headline | None:
    """The row of a patch's page, with the gain for this set-up; None if it would not be live."""
    if LIVE not in (one.state, one.would):
        return None
    page, words = patch_page.read(patch.id), patch.gain_with.split(" | ")
    wanted = words if len(words) > 1 else words * len(page.headlines)
    rows = zip(page.headlines, wanted, strict=True)
    measured = tuple(row for row, words in rows if setup.meets(words))
    headline = page._replace(headlines=measured or page.headlines).headline(release)
    return headline if measured or headline is None else headline._replace(gain=_NO_GAIN)


def counted_faults(release: str, could: int, kept: int) -> str:
    """How many known faults a server `could` have without patches, and `kept` with its patches."""
    known = len(faults.of_release(release))
    if not known:
        return f"We know no fault of sglang {release}."
    prevented = f"; patches prevent {could - kept} of them" if kept < could else ""
    if could and not kept:
        prevented = "; patches prevent all of them" if could > 1 else "; a patch prevents it"
    can = f"{could or 'none'} can occur in this set-up{prevented}"
    return f"Of the {known} known faults of sglang {release}, {can}."


def remaining_faults(
    release: str, found: Sequence[tuple[Fault, bool]], states: Mapping[str, Outlook]
) -> str:
    """The faults that a server keeps, surely or not, each with what helps there; "" for none."""
    title = f"Known faults of sglang {release} that remain in this server:"
    texts = (one.text(release, is_sure=is_sure, ours=_ours(one, states)) for one, is_sure in found)
    return listed(title, texts)


def _ours(fault: Fault, states: Mapping[str, Outlook]) -> str:
    """What our patch does about a fault in that server; "" if it can do nothing there."""
    one = states.get(fault.patch)
    if one is None:
        return ""
    if LIVE in (one.state, one.would):  # live: but the server does not load it
        return f"our {one.patch} prevents it once it is {'on' if one.would else 'loaded'}"
    is_gated = "gated" in (one.state, one.would)
    return f"our {one.patch} prevents it without what turns it off" if is_gated else ""


def listed(title: str, texts: Iterable[str]) -> str:
    """A title with an item for each text; "" for none."""
    items = [*map(render.item, texts)]
    return "\n".join([title, *items]) if items else ""
