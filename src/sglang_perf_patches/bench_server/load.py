"""Sends requests to a server with sglang's own ``bench_serving``; its options are passed on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..compat.source import Tree as Source
from ..supervised import Supervised
from . import BenchError, UsageError, processes, redact
from .command import ServerCommand

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
_HELP_S = 300


def module(source: Source) -> str:
    """The name of the ``bench_serving`` module in this sglang.

    Raises:
        UsageError: it has none.
    """
    for name in _MODULES:
        if source.path(name) is not None:
            return name
    raise UsageError(f"sglang {source.version} has no bench_serving")


def completed(options: Sequence[str]) -> list[str]:
    """The operator's options, completed by a default load of random prompts."""
    named = _names(options)
    added = [word for pair in _DEFAULTS.items() if pair[0] not in named for word in pair]
    return [*added, *options]


def check(name: str, options: Sequence[str]) -> None:
    """Check, before a server is started, that ``bench_serving`` runs here and has these options.

    Raises:
        UsageError: it does not run, lacks an option, or this tool sets the option itself.
    """
    named = _names(options)
    for option in named:
        if option in _OURS:
            raise UsageError(f"{option}: bench server sets this option of bench_serving itself")
    try:
        done = subprocess.run(
            [*_python(name), "--help"],
            capture_output=True,
            text=True,
            env=_environment(),
            timeout=_HELP_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{name} --help did not end within {_HELP_S} s") from error
    if done.returncode:
        raise UsageError(f"{name} does not run here: {last_line(done.stderr)}")
    known = set(re.findall(r"(?<![\w-])--[a-z0-9][\w-]*", done.stdout))
    for option in named:
        if re.match(r"--[a-z]", option) and not any(each.startswith(option) for each in known):
            raise UsageError(f"{option}: neither bench server nor {name} has this option")


def started(
    name: str,
    options: Sequence[str],
    served: ServerCommand,
    *,
    tokenizer: str | None,
    result: Path,
    log: Path,
) -> AbstractContextManager[Supervised]:
    """Send the requests while the block runs; `read` then reads the file `result`."""
    where = ["--base-url", served.url, "--output-file", os.fspath(result), "--output-details"]
    if tokenizer and "--tokenizer" not in _names(options):
        where += ["--tokenizer", tokenizer]
    environment = _environment()
    if served.api_key is not None:
        environment["OPENAI_API_KEY"] = served.api_key
    result.unlink(missing_ok=True)
    command = [*_python(name), *options, *where]
    return processes.started(command, environment=environment, log=log)


def read(result: Path, log: Path) -> dict[str, Any]:
    """The result of ``bench_serving``.

    Raises:
        BenchError: it wrote nothing, or not every request was answered.
    """
    try:
        measured: dict[str, Any] = json.loads(result.read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError) as error:
        raise BenchError(f"bench_serving wrote no result: {last_line_of(log)}") from error
    asked = measured.get("errors", [])
    errors = [error for error in asked if error]
    if errors or not measured.get("completed"):
        why = last_line(errors[0]) if errors else "none was answered"
        failed = len(errors) or len(asked)
        raise BenchError(f"{failed} of {len(asked)} requests failed: {why} (log: {result})")
    return measured


def last_line(text: str) -> str:
    """The public names (see `redact.names`) in the last line that is not empty or a warning."""
    lines = [
        line.strip()
        for line in text.splitlines()
        if re.search(r"\w", line) and "warnings.warn(" not in line and "Warning: " not in line
    ]
    return redact.names(lines[-1][:200]) if lines else "no output"


def last_line_of(log: Path) -> str:
    """The same of a log."""
    return last_line(log.read_bytes()[-8000:].decode(errors="replace"))


def _names(options: Sequence[str]) -> dict[str, None]:
    """The options in the words, in order, without values."""
    return {word.partition("=")[0]: None for word in options if word.startswith("-")}


def _python(module: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", module]


def _environment() -> dict[str, str]:
    """The client's environment: this process's own, so that it is the same for all sides."""
    return {**os.environ, "SGLANG_PERF_PATCHES": "none"}
