"""One boot of an operator's server, from its start until its last process has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..supervised import Supervised
from . import BenchError, client, command, load, machine, patches, processes, redact, tokens
from .command import ServerCommand
from .load import Load
from .sides import Side

_CHECK_S = 0.5
_ENDING_S = 5.0
"""How long after a failure the server's end may be the reason: its processes end one by one."""


@dataclass(frozen=True)
class Plan:
    """What all boots have in common.

    `folder` is for logs and results; `limit_s` is how long a boot and a load may take.
    """

    served: ServerCommand
    load: Load
    folder: Path
    limit_s: float


@dataclass(frozen=True)
class Boot:
    """What one boot gave.

    Attributes:
        figures: name (see `outcome.FIGURES`) → value, 0 if it is unknown.
        records: the records of the server's processes, as `telemetry.records` gives them.
        model: the path of its model, as the server reports it.
    """

    figures: Mapping[str, float]
    tokens: tokens.Tokens
    records: Sequence[dict[str, Any]] = ()
    model: str = ""


def run(plan: Plan, side: Side, *, name: str, say: Callable[[str], None]) -> Boot:
    """Start a side's server, measure, and end it.

    `name` is the name of this boot's files, and `say` is called with each line about the progress.

    Raises:
        BenchError: it crashed, hung or did not answer.
        OperatorError: another process listens on its port.
    """
    command.require_free(plan.served)
    log = plan.folder / f"{name}.log"
    gpu_before = machine.gpu_bytes()
    say("starting")
    words = [*plan.served.command, *side.flags]
    with processes.started(words, environment=side.environment, log=log) as server:
        try:
            return _measured(plan, side, server, name, gpu_before, say)
        except BenchError as error:
            deadline = time.monotonic() + _ENDING_S
            while server.code is None and time.monotonic() < deadline:
                time.sleep(_CHECK_S)
            if server.code is None:
                raise
            why = redact.names_in(log)
            raise BenchError(f"the server ended with {server.code}: {why}") from error


def _measured(
    plan: Plan,
    side: Side,
    server: Supervised,
    name: str,
    gpu_before: int,
    say: Callable[[str], None],
) -> Boot:
    began = time.monotonic()
    _wait("boot", server, plan.limit_s, lambda: client.is_ready(plan.served))
    figures = {"boot": time.monotonic() - began}
    say(f"ready after {figures['boot']:.0f} s; greedy tokens")
    model = client.info(plan.served, "/model_info")
    if model.get("is_generation") is False:
        raise BenchError("the server computes embeddings; bench server compares generation only")
    greedy = tokens.greedy(plan.served)
    patches.require_side(server, side)
    say("load")
    figures |= _loaded(plan, name, server, model.get("tokenizer_path"))
    figures["GPU memory"] = (machine.gpu_bytes() - gpu_before) / 1e6
    figures["KV capacity"] = float(
        client.info(plan.served, "/server_info").get("max_total_num_tokens") or 0
    )
    records = patches.of_server(server, is_patched=side.is_patched)
    say("ending")
    return Boot(figures, greedy, records, str(model.get("model_path", "")))


def _loaded(plan: Plan, name: str, server: Supervised, tokenizer: str | None) -> dict[str, float]:
    """Send the load; return its figures, with the server's peak memory meanwhile."""
    result = plan.folder / f"{name}-load.jsonl"
    resident = []
    with plan.load.started(plan.served, tokenizer, result) as sender:

        def has_ended() -> bool:
            resident.append(server.resident_bytes())
            return sender.code is not None

        _wait("load", server, plan.limit_s, has_ended)
        if sender.code:
            why = redact.names_in(result.with_suffix(".log"))
            raise BenchError(f"bench_serving ended with {sender.code}: {why}")
    return {**load.read(result), "host memory": max(resident) / 1e6}


def _wait(what: str, server: Supervised, limit_s: float, is_done: Callable[[], bool]) -> None:
    """Wait for the ``boot`` or the ``load``.

    Raises:
        BenchError: the server has ended, or it takes longer than the limit.
    """
    deadline = time.monotonic() + limit_s
    while not is_done():
        if server.code is not None:
            raise BenchError("the server ended")
        if time.monotonic() > deadline:
            raise BenchError(f"the {what} was not finished after {limit_s:.0f} s (--timeout)")
        time.sleep(_CHECK_S)
