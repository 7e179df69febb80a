"""The state that each patch would have in a server, by the rule of a running server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ... import faults, verified, worker
from ...compat.verdict import Verdict
from ...faults.fault import Fault
from ...model.errors import OperatorError
from ...model.feature import Setup
from ...model.ruling import ruling
from ...model.selection import Selection
from ..interpreter import Place
from ..table import LIVE, OPT_IN
from . import ENDS, FAILED, GONE, LACKS, REFUSED, UNFETCHED, hub
from .command import ParsedCommand
from .gpus import Gpu

_LIMIT_S = 60.0
"""For both tries together."""

_RESOLVER = f"{__package__}.resolver"
_TELLING = 20
"""Characters of a message that tell one fault from another."""

OFF = "off"


@dataclass(frozen=True)
class Outlook:
    """What becomes of a patch.

    Attributes:
        patch: its id.
        state: as a process would report it; `OPT_IN` for a policy that is not chosen.
        reason: why it is not live; "" if it is.
        would: the state of an unchosen patch if it were chosen; "" for a chosen one.
    """

    patch: str
    state: str
    reason: str
    would: str = ""


@dataclass(frozen=True)
class Answer:
    """What a release makes of a command.

    Attributes:
        setup: the server's features and uses.
        conditions: what `faults.conditions` returns for it.
        unasked: what could not be asked here, in words.
    """

    setup: Setup
    conditions: Mapping[str, bool]
    unasked: tuple[str, ...] = ()


def ask(asked: ParsedCommand, gpu: Gpu | None, place: Place, selection: str) -> Answer:
    """What the release makes of a command; a child process resolves its arguments.

    Args:
        asked: the server's command.
        gpu: the GPUs that it runs on; None for none.
        place: the release, and the Python that asks it.
        selection: the text of the patches that the server activates.

    Raises:
        OperatorError: the release refuses the arguments, a model could not be fetched, or the child
            could not import the release.
    """
    environment = dict(asked.environment)
    if not place.python:
        own = environment.get("PYTHONPATH", "").split(os.pathsep)
        search = [str(place.tree.root.parent), *filter(None, [*own, *sys.path])]
        environment["PYTHONPATH"] = os.pathsep.join(search)
    task = {"gpu": gpu and asdict(gpu), "selection": selection, "lenient": asked.by_dynamo}
    limit_s = worker.as_busy(_LIMIT_S)
    end = time.monotonic() + limit_s
    line: Mapping[str, Any] = {}
    for minimal_imports in (True, False):
        with worker.Child(
            _RESOLVER,
            [json.dumps({**task, "minimal_imports": minimal_imports}), *asked.arguments],
            limit_s=max(end - time.monotonic(), 1),
            environment=environment,
            python=place.python or (sys.executable,),
        ) as child:
            line = next(iter(child), line)  # if the second try is late, the first one's failure
            ended = child.why_it_ended()
        if child.was_late and not line:
            raise OperatorError(
                f"sglang {place.tree.version} gave no answer in {limit_s:.0f} s. The first answer "
                "takes longest, because Python compiles torch and sglang: try again"
            )
        if "on" in line:
            setup = Setup(line["on"], line["lacking"], frozenset(line["having"]))
            return Answer(setup, line["faults"], tuple(line["notes"]))
        if line.get("outcome") != FAILED or "transformers" in line:
            break  # only another failure may be due to what was left out
    raise _error(asked, place, line, ended)


def _error(
    asked: ParsedCommand, place: Place, line: Mapping[str, Any], ended: str
) -> OperatorError:
    """Why there is no answer.

    Args:
        asked: the command.
        place: the release that was asked.
        line: what the child emitted; empty if nothing.
        ended: why the child ended.
    """
    release = f"sglang {place.tree.version}"
    why, outcome = line.get("why") or ended, line.get("outcome")
    if outcome == ENDS:
        return OperatorError(
            "this command prints something, and starts no server: leave --help out"
        )
    if outcome == GONE:
        return OperatorError(
            f"the model's path {why} is not on this machine: give a folder that has its config.json"
        )
    if outcome == UNFETCHED:
        models = " or ".join(line["models"]) or "the model"
        return OperatorError(
            f"can't fetch config.json of {models} from {hub.host(asked.environment)} ({why}): "
            "instead of that name, give a folder that has the model's config.json"
        )
    if outcome == REFUSED:
        known = fault_of(place.tree.version, why, line.get("faults", ()))
        hint = f" (known: {known.text()})" if known else ""
        return OperatorError(f"{release} refuses this command: {why}{hint}")
    python = place.python[0] if place.python else "this Python"
    if outcome == LACKS:
        return OperatorError(
            f"{python} has no {why}, which {release} needs to read the command: run this in an "
            f"environment with {release} (pip install sglang=={place.tree.version})"
        )
    if "transformers" in line:
        have, needs = line["transformers"]
        if needs == f"=={have}":  # then the model is at fault
            why = f"transformers {have}, which fits it, failed ({why})"
            return OperatorError(f"{release} could not be asked: {why}")
        own = f"the one of pip install sglang=={place.tree.version}"
        fits = f"transformers{needs}" if needs else own
        return OperatorError(
            f"{release} could not be asked with transformers {have or 'of this Python'} of "
            f"{python} ({why}): it needs {fits}"
        )
    return OperatorError(f"{release} could not be asked: {why}")


def outlooks(
    selection: Selection, verdicts: Iterable[Verdict], setup: Setup, *, is_here: bool = False
) -> list[Outlook]:
    """The outlook of each patch on that server, in declared order.

    Args:
        selection: the patches that it chooses.
        verdicts: of its release.
        setup: its features and uses.
        is_here: whether its GPUs are this machine's, so that records of ``verify`` count.
    """
    by_id = {verdict.patch.id: verdict for verdict in verdicts}
    found = []
    for name, verdict in by_id.items():
        if verdict.word != "applies":
            found.append(Outlook(name, verdict.word, verdict.reason))
            continue
        needed = [by_id[each] for each in verdict.patch.requires]
        acting = [each.patch for each in needed if each.word == "applies"]
        ruled = ruling(
            verdict.patch.proven_in(verdict.variant),
            acting,
            setup,
            lambda each: verified.lacking(by_id[each.id]) if is_here else verified.hint(each.id),
        )
        state, reason = ruled or (LIVE, "")
        if name in selection.ids:
            found.append(Outlook(name, state, reason))
        else:
            word = OFF if verdict.patch.is_default else OPT_IN
            found.append(Outlook(name, word, reason or "not chosen", state))
    return found


def fault_of(release: str, message: str, conditions: Container[str]) -> Fault | None:
    """The known fault whose symptom quotes this message; None if none does.

    Args:
        release: the version of sglang.
        message: an error's text.
        conditions: the names of the faults that the server may have.
    """
    for fault in faults.of_release(release):
        quoted = fault.symptom.split("`")[1::2]
        if fault.name in conditions and any(
            len(part) >= _TELLING and part in message for part in quoted
        ):
            return fault
    return None
