"""The state that each patch would have in a server, by the rule of a running server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from ... import verified, worker
from ...compat.verdict import Verdict
from ...model.errors import OperatorError
from ...model.feature import Setup
from ...model.patch import Patch
from ...model.ruling import ruling
from ...model.selection import Selection
from ...patch_page import Headline
from ..interpreter import Place
from ..table import LIVE, OPT_IN
from .front import ParsedCommand
from .gpus import Gpu

_LIMIT_S = 60.0
"""For both tries together, on a quiet machine."""

OFF = "off"


class Outlook(NamedTuple):
    """What becomes of a patch."""

    patch: str
    state: str  # as a process would report it; `OPT_IN` for a policy that is not chosen
    reason: str  # why it is not live; "" if it is
    would: str = ""  # the state of an unchosen patch if it were chosen; "" for a chosen one
    headline: Headline | None = None  # of its page, for this set-up, if it is or would be live


def ask(
    asked: ParsedCommand, gpu: Gpu | None, place: Place, selection: str
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
            f"{__package__}.resolver",
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
