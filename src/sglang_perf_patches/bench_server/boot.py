"""One boot of an operator's server, from its start until its last process has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..supervised import Supervised
from . import BenchError, client, command, load, machine, patches, processes, tokens
from .command import ServerCommand
from .sides import Side

_CHECK_S = 0.5
_SAY_S = 15.0
_ENDING_S = 5.0
"""How long after a failure the server's end may be the reason: its processes end one by one."""
_OF_LOAD = {
    "TTFT": "median_ttft_ms",
    "TTFT p99": "p99_ttft_ms",
    "TPOT": "median_tpot_ms",
    "ITL": "median_itl_ms",
    "ITL p99": "p99_itl_ms",
    "throughput": "output_throughput",
}
"""Figure → its key in ``bench_serving``'s result."""


@dataclass(frozen=True)
class Plan:
    """What all boots have in common.

    Attributes:
        prefix: words before the command, which activate patches in releases without plugins.
        sides: the second is compared with the first.
        module: of sglang's ``bench_serving``.
        options: of ``bench_serving``.
        folder: for logs and results.
    """

    served: ServerCommand
    prefix: tuple[str, ...]
    sides: tuple[Side, Side]
    module: str
    options: tuple[str, ...]
    folder: Path
    boot_limit_s: float
    load_limit_s: float


@dataclass(frozen=True)
class Boot:
    """What one boot gave.

    Attributes:
        figures: name (see `outcome.FIGURES`) → value, without unknown ones.
        tokens: the greedy tokens.
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
        UsageError: another process listens on its port.
    """
    command.require_free(plan.served)
    log = plan.folder / f"{name}.log"
    gpu_before = _gpu_bytes()
    say("starting")
    began = time.monotonic()
    words = [*plan.prefix, *plan.served.command, *side.flags]
    with processes.started(words, environment=side.environment, log=log) as tree:
        server = _Server(tree, log, say)
        server.wait("boot", "starting", plan.boot_limit_s, lambda: client.is_ready(plan.served))
        figures = {"boot": time.monotonic() - began}
        say(f"ready after {figures['boot']:.0f} s; greedy tokens")
        try:
            model = client.info(plan.served, "/model_info")
            if model.get("is_generation") is False:
                raise BenchError(
                    "the server computes embeddings; bench server compares generation only"
                )
            greedy = tokens.greedy(plan.served)
            patches.require_side(tree, side)
        except BenchError as error:
            server.require_alive("answering", _ENDING_S)
            raise BenchError(f"{error} (log: {log})") from error
        say("load")
        figures |= _loaded(plan, name, server, model.get("tokenizer_path"))
        if gpu_before is not None and (gpu := _gpu_bytes()) is not None and gpu > gpu_before:
            figures["GPU memory"] = (gpu - gpu_before) / 1e6
        info = client.info(plan.served, "/server_info")
        if isinstance(capacity := info.get("max_total_num_tokens"), int) and capacity > 0:
            figures["KV capacity"] = float(capacity)
        records = patches.of_server(tree, is_patched=side.is_patched)
        say("ending")
    return Boot(figures, greedy, records, str(model.get("model_path", "")))


@dataclass(frozen=True)
class _Server:
    tree: Supervised
    log: Path
    say: Callable[[str], None]

    def require_alive(self, doing: str, patience_s: float = 0.0) -> None:
        """Check that the server still runs, for some seconds.

        Raises:
            BenchError: it has ended.
        """
        deadline = time.monotonic() + patience_s
        while (code := self.tree.code) is None:
            if time.monotonic() >= deadline:
                return
            time.sleep(_CHECK_S)
        last = load.last_line_of(self.log)
        raise BenchError(f"the server ended with {code} while {doing}: {last} (log: {self.log})")

    def wait(self, what: str, doing: str, limit_s: float, is_done: Callable[[], bool]) -> None:
        """Wait for the ``boot`` or the ``load``, with a line about the progress now and then.

        Raises:
            BenchError: the server has ended, or it takes longer than the limit.
        """
        began = spoke = time.monotonic()
        while not is_done():
            self.require_alive(doing)
            passed = time.monotonic() - began
            if passed > limit_s:
                raise BenchError(
                    f"the {what} was not finished after {limit_s:.0f} s (--{what}-timeout); "
                    f"the server's last line: {load.last_line_of(self.log)} (log: {self.log})"
                )
            if time.monotonic() - spoke > _SAY_S:
                spoke = time.monotonic()
                self.say(f"{what}, {passed:.0f} s")
            time.sleep(_CHECK_S)


def _loaded(plan: Plan, name: str, server: _Server, tokenizer: str | None) -> dict[str, float]:
    """Send the load; return its figures, with the server's peak memory meanwhile."""
    result, log = plan.folder / f"{name}.jsonl", plan.folder / f"{name}-load.log"
    resident = [server.tree.resident_bytes()]
    with load.started(
        plan.module, plan.options, plan.served, tokenizer=tokenizer, result=result, log=log
    ) as sender:

        def has_ended() -> bool:
            resident.append(server.tree.resident_bytes())
            return sender.code is not None

        server.wait("load", "serving the load", plan.load_limit_s, has_ended)
        code = sender.code
    if code:
        server.require_alive("serving the load", _ENDING_S)
        last = load.last_line_of(log)
        raise BenchError(f"bench_serving ended with {code}: {last} (log: {log})")
    return {**_figures(load.read(result, log)), "host memory": max(resident) / 1e6}


def _figures(measured: Mapping[str, Any]) -> dict[str, float]:
    """The figures of ``bench_serving``'s result that are compared."""
    return {name: float(measured[key]) for name, key in _OF_LOAD.items() if measured.get(key)}


def _gpu_bytes() -> int | None:
    """Bytes in use on all NVIDIA GPUs of this machine; None without such a GPU."""
    numbers = [word for word in machine.smi("memory.used") if word.isdecimal()]
    return sum(map(int, numbers)) * 1024 * 1024 if numbers else None
