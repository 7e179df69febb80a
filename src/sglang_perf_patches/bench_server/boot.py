"""One boot of an operator's server, from its start until nothing of it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import BenchError, client, command, load, machine, patches, processes, tokens
from .command import ServerCommand
from .sides import Side

_LOOK_S = 0.5
_SAY_S = 15.0


@dataclass(frozen=True)
class Plan:
    """What all boots have in common.

    Attributes:
        served: the command and its address.
        prefix: words before the command, which put the patches into releases without plugins.
        sides: what is compared; the others with the first.
        module: sglang's ``bench_serving``.
        options: its options.
        folder: where logs and results go.
        boot_limit_s: seconds that a server may take until it is ready.
        load_limit_s: seconds that a load may take.
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
        side: the name of its side.
        figures: name → value, as `outcome.FIGURES` names them; what is unknown is left out.
        tokens: the greedy tokens.
        records: those of the server's processes, as `telemetry.records` gives them.
        labels: what the server says about itself: model, sglang.
    """

    side: str
    figures: Mapping[str, float]
    tokens: tokens.Tokens
    records: Sequence[dict[str, Any]] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


def run(plan: Plan, side: Side, *, name: str, say: Callable[[str], None]) -> Boot:
    """Start the server, measure, and end it.

    Args:
        plan: what all boots have in common.
        side: which of its sides this is.
        name: of this boot, for its files.
        say: called with a line about the progress, now and then.

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
            model = client.told(plan.served, "/model_info", "/get_model_info")
            if model.get("is_generation") is False:
                raise BenchError("it serves embeddings; bench server compares generation only")
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
        info = client.told(plan.served, "/server_info", "/get_server_info")
        if isinstance(capacity := info.get("max_total_num_tokens"), int) and capacity > 0:
            figures["KV capacity"] = float(capacity)
        records = patches.of_server(tree.pids, is_patched=side.is_patched)
        labels = {
            "model": str(model.get("model_path", "")),
            "sglang": str(info.get("version", "")),
        }
        say("ending")
    return Boot(side.name, figures, greedy, records, labels)


def _wait_until_ready(
    plan: Plan, tree: processes.Tree, log: Path, began: float, say: Callable[[str], None]
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
    tree: processes.Tree,
    log: Path,
    tokenizer: str | None,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], int]:
    """What ``bench_serving`` measured, and the most memory that the server held meanwhile."""
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


def _require_alive(tree: processes.Tree, log: Path, doing: str) -> None:
    """Check that the command has neither failed nor ended without a server."""
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
    """What of ``bench_serving``'s result is compared."""
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
    """The memory in use on all NVIDIA GPUs of this machine; None if there is no such GPU."""
    numbers = [word for word in machine.smi("memory.used") if word.isdecimal()]
    return sum(map(int, numbers)) * 1024 * 1024 if numbers else None
