"""Sends requests to a server with sglang's own ``bench_serving``; its options are passed on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compat.source import Tree
from ..model.errors import OperatorError
from ..supervised import Supervised
from . import BenchError, processes, redact
from .command import ServerCommand

FIGURES = {
    "TTFT": "median_ttft_ms",
    "TTFT p99": "p99_ttft_ms",
    "TPOT": "median_tpot_ms",
    "ITL": "median_itl_ms",
    "ITL p99": "p99_itl_ms",
    "throughput": "output_throughput",
}
"""Figure → its key in ``bench_serving``'s result."""
_MODULES = ("sglang.benchmark.serving", "sglang.bench_serving")
_DEFAULTS = {
    "--backend": "sglang",
    # Random ids need no dataset, which bench_serving would download.
    "--dataset-name": "random-ids",
    "--num-prompts": "128",
    "--random-input-len": "512",
    "--random-output-len": "128",
    "--random-range-ratio": "0.5",
    "--max-concurrency": "16",
    "--seed": "1",
}
_OURS = ("--base-url", "--host", "--port", "--output-file", "--output-details", "--help", "-h")


@dataclass(frozen=True)
class Load:
    """The module ``bench_serving`` of this sglang, and all of its options that make the load."""

    module: str
    options: Sequence[str]

    def check(self) -> None:
        """Check, before a server is started, that the module runs here and has these options.

        Raises:
            OperatorError: it does not run, lacks an option, or this tool sets the option itself.
        """
        command = [*self._python, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, env=_environment())
        if done.returncode:
            raise OperatorError(f"{self.module} does not run here: {redact.names(done.stderr)}")
        known = re.findall(r"(?<![\w-])--[a-z0-9][\w-]*", done.stdout)
        for name in _names(self.options):
            if name in _OURS:
                raise OperatorError(f"{name}: bench server sets this option of bench_serving")
            if name.startswith("--") and not any(each.startswith(name) for each in known):
                raise OperatorError(f"{name}: neither bench server nor {self.module} has this")

    def started(
        self, served: ServerCommand, tokenizer: str | None, result: Path
    ) -> AbstractContextManager[Supervised]:
        """Send the requests while the block runs; `read` then reads the file `result`."""
        where = ["--base-url", served.url, "--output-file", os.fspath(result), "--output-details"]
        if tokenizer and "--tokenizer" not in _names(self.options):
            where += ["--tokenizer", tokenizer]
        environment = _environment()
        if served.api_key is not None:
            environment["OPENAI_API_KEY"] = served.api_key
        command = [*self._python, *self.options, *where]
        return processes.started(command, environment=environment, log=result.with_suffix(".log"))

    @property
    def _python(self) -> list[str]:
        return [sys.executable, "-W", "ignore", "-m", self.module]


def of(tree: Tree, options: Sequence[str]) -> Load:
    """The load with an operator's options, completed by a default load of random prompts."""
    for module in _MODULES:
        if tree.path(module) is not None:
            named = _names(options)
            added = [word for pair in _DEFAULTS.items() if pair[0] not in named for word in pair]
            return Load(module, [*added, *options])
    raise OperatorError(f"sglang {tree.version} has no bench_serving")


def read(result: Path) -> dict[str, float]:
    """The figures of ``bench_serving``, 0 for a missing one; BenchError if a request failed."""
    try:
        measured: dict[str, Any] = json.loads(result.read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError) as error:
        raise BenchError("bench_serving wrote no result") from error
    asked = measured.get("errors", [])
    if errors := [error for error in asked if error]:
        why = redact.names(errors[0])
        raise BenchError(f"{len(errors)} of {len(asked)} requests failed: {why}")
    if not measured.get("completed"):
        raise BenchError("no request was answered")
    return {name: float(measured.get(key) or 0) for name, key in FIGURES.items()}


def _names(options: Sequence[str]) -> list[str]:
    return [word.partition("=")[0] for word in options if word.startswith("-")]


def _environment() -> dict[str, str]:
    """The client's environment: this process's own, so that it is the same for all sides."""
    return {**os.environ, "SGLANG_PERF_PATCHES": "none"}
