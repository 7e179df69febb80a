"""One boot of an operator's server, from its start until its last process has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..supervised.command import Supervised
from . import BenchError, client, command, load, machine, patches, processes, tokens
from .command import ServerCommand
from .sides import Side

_LOOK_S = 0.5
_SAY_S = 15.0


@dataclass(frozen=True)
class Plan:
    """What all boots have in common.

    Attributes:
        prefix: words before the command, which activate patches in releases without plugins.
        sides: each is compared with the first.
        module: of sglang's ``bench_serving``.
        options: of ``bench_serving``.
        folder: for logs and results.
    """

    served: ServerCommand
    prefix: tuple[str, ...]
    sides: tuple[Side, ...]
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
    """Start the server, measure, and end it.

    Args:
        plan: what all boots have in common.
        side: the side to start.
        name: the name of this boot's files.
        say: called with each line about the progress.

    Raises:
        BenchError: it crashed, hung or did not answer.
        UsageError: another process listens on its port, or its program can't be run.
    """
    command.require_free(plan.served)
    log = plan.folder / f"{name}.log"
    gpu_before = _gpu_bytes()
    say("starting")
    began = time.monotonic()
    words = [*plan.prefix, *plan.served.command, *side.flags]
    with processes.started(words, environment=side.environment, log=log) as tree:
        _wait_until_ready(plan, tree, log, began, say)
        figures = {"boot": time.monotonic() - began}
        say(f"ready after {figures['boot']:.0f} s; greedy tokens")
        try:
            model = client.told(plan.served, "/model_info")
            if model.get("is_generation") is False:
                raise BenchError(
                    "the server computes embeddings; bench server compares generation only"
                )
            greedy = tokens.of(plan.served)
            patches.require_side(tree.pids(), side)
        except BenchError as error:
            _require_alive(tree, log, "answering")
            raise BenchError(f"{error} (log: {log})") from error
        say("load")
        measured, resident = _loaded(plan, name, tree, log, model.get("tokenizer_path"), say)
        figures |= _figures(measured)
        figures["host memory"] = resident / 1e6
        if gpu_before is not None and (gpu := _gpu_bytes()) is not None and gpu > gpu_before:
            figures["GPU memory"] = (gpu - gpu_before) / 1e6
        info = client.told(plan.served, "/server_info")
        if isinstance(capacity := info.get("max_total_num_tokens"), int) and capacity > 0:
            figures["KV capacity"] = float(capacity)
        records = patches.of_server(tree.pids, is_patched=side.is_patched)
        say("ending")
    return Boot(figures, greedy, records, str(model.get("model_path", "")))


def _wait_until_ready(
    plan: Plan, tree: Supervised, log: Path, began: float, say: Callable[[str], None]
) -> None:
    spoke = began
    while not client.is_ready(plan.served):
        _require_alive(tree, log, "starting")
        passed = time.monotonic() - began
        if passed > plan.boot_limit_s:
            raise BenchError(
                f"the server was not ready after {plan.boot_limit_s:.0f} s (--boot-timeout); "
                f"its last line: {_last(log)} (log: {log})"
            )
        if time.monotonic() - spoke > _SAY_S:
            spoke = time.monotonic()
            say(f"starting, {passed:.0f} s")
        time.sleep(_LOOK_S)


def _loaded(
    plan: Plan,
    name: str,
    tree: Supervised,
    log: Path,
    tokenizer: str | None,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], int]:
    """Send the load; return ``bench_serving``'s result and the server's peak memory meanwhile."""
    result, client_log = plan.folder / f"{name}.jsonl", plan.folder / f"{name}-load.log"
    result.unlink(missing_ok=True)
    began = spoke = time.monotonic()
    most = tree.resident_bytes()
    with load.started(
        plan.module,
        plan.options,
        plan.served,
        tokenizer=tokenizer,
        result=result,
        log=client_log,
    ) as sender:
        while sender.code is None:
            _require_alive(tree, log, "serving the load")
            most = max(most, tree.resident_bytes())
            passed = time.monotonic() - began
            if passed > plan.load_limit_s:
                raise BenchError(
                    f"the load was not finished after {plan.load_limit_s:.0f} s (--load-timeout); "
                    f"the server's last line: {_last(log)} (log: {log})"
                )
            if time.monotonic() - spoke > _SAY_S:
                spoke = time.monotonic()
                say(f"load, {passed:.0f} s")
            time.sleep(_LOOK_S)
        code = sender.code
    if code:
        _require_alive(tree, log, "serving the load")
        line = _last(client_log)
        raise BenchError(f"bench_serving ended with {code}: {line} (log: {client_log})")
    return load.read(result, client_log), most


def _require_alive(tree: Supervised, log: Path, doing: str) -> None:
    """Check that the server's command still runs.

    Raises:
        BenchError: it has ended.
    """
    code = tree.code
    if code is None or (code == 0 and tree.pids()):
        return
    ended = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    raise BenchError(f"the server {ended} while {doing}: {_last(log)} (log: {log})")


def _last(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8000))
            return load.last_line(file.read().decode(errors="replace"))
    except OSError:
        return "no output"


def _figures(measured: Mapping[str, Any]) -> dict[str, float]:
    """The figures of ``bench_serving``'s result that are compared."""
    keys = {
        "TTFT": "median_ttft_ms",
        "TTFT p99": "p99_ttft_ms",
        "TPOT": "median_tpot_ms",
        "ITL": "median_itl_ms",
        "ITL p99": "p99_itl_ms",
        "throughput": "output_throughput",
    }
    values = {figure: measured.get(key) for figure, key in keys.items()}
    return {figure: float(value) for figure, value in values.items() if value}


def _gpu_bytes() -> int | None:
    """Bytes in use on all NVIDIA GPUs of this machine; None without such a GPU."""
    numbers = [word for word in machine.smi("memory.used") if word.isdecimal()]
    return sum(map(int, numbers)) * 1024 * 1024 if numbers else None
