"""Boots of an operator's server, each from its start until its last process has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.errors import OperatorError
from ..supervised import Supervised
from . import BenchError, command, load, machine, patches, processes, redact, tokens
from .command import ServerCommand
from .load import Load
from .sides import Side

Say = Callable[[str], None]
"""Is called with each line about the progress."""

_CHECK_S = 0.5
_ENDING_S = 5.0
"""How long after a failure the server's end may be the reason: its processes end one by one."""


@dataclass(frozen=True)
class Plan:
    """What all boots have in common."""

    served: ServerCommand
    load: Load
    folder: Path  # for logs and results
    limit_s: float  # how long a boot and a load may take


@dataclass(frozen=True)
class Boot:
    """What one boot gave."""

    figures: Mapping[str, float]  # name (see `outcome.FIGURES`) → value, 0 if it is unknown
    tokens: tokens.Tokens
    records: Sequence[dict[str, Any]] = ()  # of the server's processes, by `telemetry.records`
    model: str = ""  # the path of its model, as the server reports it


def in_turns(
    plan: Plan, sides: tuple[Side, Side], turns: int, say: Say
) -> tuple[list[tuple[Boot, Boot]], str]:
    """The completed turns, each with a boot of both sides, and why they stopped early, or "".

    Odd turns have the sides in reverse order: so no side gains from a machine that steadily becomes
    faster or slower.
    """

    def boot(side: Side, turn: int, number: int) -> Boot:
        head = f"turn {turn} of {turns}, {side.name}"
        say(f"{head}: boot {number} of {2 * turns}")
        return _run(plan, side, f"{turn}-{side.name}", lambda line: say(f"{head}: {line}"))

    done: list[tuple[Boot, Boot]] = []
    for turn in range(1, turns + 1):
        boots: dict[str, Boot] = {}
        for side in reversed(sides) if turn % 2 else sides:
            try:
                boots[side.name] = boot(side, turn, 2 * turn - 1 + len(boots))
            except OperatorError as error:
                return done, f"turn {turn}, {side.name}: {error}"
        done.append((boots[sides[0].name], boots[sides[1].name]))
    return done, ""


def _run(plan: Plan, side: Side, name: str, say: Say) -> Boot:
    """Start a side's server, measure, and end it; `name` is that of this boot's files."""
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
    plan: Plan, side: Side, server: Supervised, name: str, gpu_before: int, say: Say
) -> Boot:
    began = time.monotonic()
    _wait("boot", server, plan.limit_s, plan.served.is_ready)
    figures = {"boot": time.monotonic() - began}
    say(f"ready after {figures['boot']:.0f} s; greedy tokens")
    model = plan.served.info("/model_info")
    if model.get("is_generation") is False:
        raise BenchError("the server computes embeddings; bench server compares generation only")
    greedy = tokens.greedy(plan.served)
    patches.require_side(server, side)
    say("load")
    figures |= _loaded(plan, name, server, model.get("tokenizer_path"))
    figures["GPU memory"] = (machine.gpu_bytes() - gpu_before) / 1e6
    capacity = plan.served.info("/server_info").get("max_total_num_tokens")
    figures["KV capacity"] = float(capacity or 0)
    records = patches.of_server(server, is_patched=side.is_patched)
    say("ending")
    return Boot(figures, greedy, records, str(model.get("model_path", "")))


def _loaded(plan: Plan, name: str, server: Supervised, tokenizer: str | None) -> dict[str, float]:
    """The figures of a load, with the server's peak memory meanwhile."""
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
    """Wait for the ``boot`` or the ``load``; BenchError if the server ends or it takes too long."""
    deadline = time.monotonic() + limit_s
    while not is_done():
        if server.code is not None:
            raise BenchError("the server ended")
        if time.monotonic() > deadline:
            raise BenchError(f"the {what} was not finished after {limit_s:.0f} s (--timeout)")
        time.sleep(_CHECK_S)
