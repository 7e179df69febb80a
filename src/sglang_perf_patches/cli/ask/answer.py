"""The state that each patch would have in a server, by the rule of a running server."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ... import faults, worker
from ...compat.source import Tree
from ...compat.verdict import Verdict
from ...faults.fault import Fault
from ...live import verified
from ...model.errors import OperatorError
from ...model.feature import Setup
from ...model.ruling import ruling
from ...model.selection import Selection
from ..table import LIVE, OPT_IN
from . import QUICKLY, WHOLLY, hub
from .command import Asked
from .gpus import Gpu

_LIMIT_S = 180.0
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(?!sglang)([\w.]+)'")
_RESOLVER = f"{__package__}.resolver"
_TELLING = 20
"""Characters of a message that tell one fault from another."""

OFF = "off"


@dataclass(frozen=True)
class Fate:
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


def ask(asked: Asked, gpu: Gpu | None, tree: Tree) -> tuple[Setup, Mapping[str, bool]]:
    """A server's features and uses, and what `faults.conditions` returns for it.

    Its release resolves its arguments in a child process.

    Args:
        asked: the server's command.
        gpu: the GPUs that it runs on; None for none.
        tree: the release.

    Raises:
        OperatorError: the release refuses the arguments, a model could not be fetched, or the child
            could not import the release.
    """
    own = asked.environment.get("PYTHONPATH", "").split(os.pathsep)
    search = [str(tree.root.parent), *filter(None, [*own, *sys.path])]
    environment = {**asked.environment, "PYTHONPATH": os.pathsep.join(search)}
    for how in (QUICKLY, WHOLLY):
        with worker.Child(
            _RESOLVER,
            [how, json.dumps(gpu and asdict(gpu)), *asked.arguments],
            limit_s=_LIMIT_S,
            environment=environment,
        ) as child:
            line: Mapping[str, Any] = next(iter(child), {})
            why = line.get("failed") or child.why_it_ended()
        if "on" in line:
            setup = Setup(line["on"], line["lacking"], frozenset(line["having"]))
            return setup, line["faults"]
        if "unfetched" in line:
            raise OperatorError(
                f"can't fetch config.json of {' or '.join(hub.models(asked.arguments))} from "
                f"{hub.host(asked.environment)} ({line['unfetched']}): instead of that name, give "
                "a folder that has the model's config.json"
            )
        if "refused" in line:
            break
    if line.get("imported", "refused" in line):
        why = line.get("refused") or why
        known = fault_of(tree.version, why)
        hint = f" (known: {known.text()})" if known else ""
        raise OperatorError(f"sglang {tree.version} refuses this command: {why}{hint}")
    if missing := _MISSING.search(why):
        raise OperatorError(
            f"this Python has no {missing[1]}, which sglang {tree.version} needs to read the "
            f"command: run this in an environment with sglang {tree.version} (pip install "
            f"sglang=={tree.version})"
        )
    raise OperatorError(f"sglang {tree.version} could not be asked: {why}")


def fates(
    selection: Selection, verdicts: Iterable[Verdict], setup: Setup, *, is_here: bool = False
) -> list[Fate]:
    """The fate of each patch on that server, in declared order.

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
            found.append(Fate(name, verdict.word, verdict.reason))
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
            found.append(Fate(name, state, reason))
        else:
            word = OFF if verdict.patch.is_default else OPT_IN
            found.append(Fate(name, word, reason or "not chosen", state))
    return found


def fault_of(release: str, message: str) -> Fault | None:
    """The fault of a release whose symptom quotes a part of an error message."""
    for fault in faults.of_release(release):
        quoted = fault.symptom.split("`")[1::2]
        if any(len(part) >= _TELLING and part in message for part in quoted):
            return fault
    return None
