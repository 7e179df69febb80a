"""``doctor --model``: how a model's server could divide its memory.

It sizes the sliding-window pool (`windows`) and, for a hybrid model, the slots for its states
(`states`, with the arithmetic in `split`) and the host's pools (`host`).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ...compat.source import Tree, TreeError
from ...model.errors import OperatorError
from ...model.feature import flag
from ..verbs import measured_by, tree_at
from . import host as of_host
from . import split, windows
from . import states as of_states
from .server import Server

_HYBRID = "this is a hybrid model"

_OPTIONS: tuple[tuple[str, Any, str, str | None], ...] = (
    ("--kv-gib", float, "G", "memory for KV and states on one GPU, in GiB (required)"),
    ("--max-running-requests", int, "N", None),
    ("--context", int, "N", "average tokens of a request (a hybrid model needs it)"),
    ("--hicache-size", float, "GB", "host memory for a hybrid model's cache, for one GPU"),
    ("--hicache-ratio", float, "R", "the same as a multiple of the GPU's pools"),
    ("--page-size", int, "N", None),
    ("--tp-size", int, "N", None),
    ("--chunked-prefill-size", int, "N", None),
    ("--kv-cache-bytes", int, "N", "bytes per value"),
)
"""Flag, type, letter and help of each option of `Server`."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the model, and the server's arguments that size its pools."""
    group = parser.add_argument_group(
        "a model",
        "To size the window pool (--swa-full-tokens-ratio) or the state pool "
        "(--max-mamba-cache-size) of a model, give its folder and the values of its server:",
    )
    group.add_argument("--model", type=Path, metavar="DIR", help="a folder with config.json")
    host = group.add_mutually_exclusive_group()
    for name, kind, letter, text in _OPTIONS:
        to = host if name.startswith("--hicache") else group
        to.add_argument(name, type=kind, metavar=letter, help=text)
    group.add_argument("--disable-radix-cache", action="store_true", default=None)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `Server` that were given."""
    values = {field.name: getattr(args, field.name) for field in fields(Server)}
    return {name: value for name, value in values.items() if value is not None}


def require_none(args: argparse.Namespace) -> None:
    """Refuse options about a model if there is no ``--model``.

    Raises:
        OperatorError: one was given.
    """
    for option in _given(args):
        raise OperatorError(
            f"{flag(option)} needs --model DIR; to ask about a server, give its whole "
            "command: sglang-perf-patches doctor -- python -m sglang.launch_server ..."
        )


def hints(args: argparse.Namespace, tree: Tree | None = None) -> tuple[dict[str, Any], str]:
    """The hints that follow from the options, as a JSON object and in words.

    Args:
        args: the options.
        tree: the release of the server; None for the installed one.

    Raises:
        OperatorError: the model's file is missing, is not JSON or lacks a field; an option or a
            release is missing; or no request fits.
    """
    if args.kv_gib is None:
        args.parser.error("--model needs --kv-gib")
    given = _given(args)
    for name, value in given.items():
        if not value > 0:
            args.parser.error(f"argument {flag(name)}: it must be above 0")
    server = Server(**given)
    path = args.model / "config.json" if args.model.is_dir() else args.model
    config = _read(path)
    try:
        pools = windows.hint(config, server)
        cells = split.cells_of(config, server)
        architecture = config["architectures"][0] if cells else ""
    except (LookupError, TypeError, AttributeError) as error:
        raise OperatorError(f"{path} does not describe a model's attention: {error!r}") from error
    states = None
    if cells:
        load = split.Load(
            server.needed("max_running_requests", _HYBRID), server.needed("context", _HYBRID)
        )
        try:
            states = of_states.hint(tree or tree_at(), architecture, cells, load, server)
        except TreeError as error:
            raise OperatorError(
                f"{error}: name the server's release with --sglang-version"
            ) from error
    host = of_host.hint(server, states)
    adds = "" if pools.ratio is None else f"--swa-full-tokens-ratio {pools.ratio:.3f}"
    if states:
        best = max(states.lines, key=lambda line: line.split.in_flight).give
        adds = best and f"{best} --max-running-requests {states.load.requests}"
    measure = adds and measured_by(adds)
    data = {
        "hint": asdict(pools),
        "states": states and asdict(states),
        "host": host and asdict(host),
        "measure": measure,
    }
    parts = [states.text if states else pools.text, host.text if host else ""]
    return data, "\n\n".join(filter(None, [*parts, measure and f"measure: {measure}"]))


def _read(path: Path) -> Any:
    """The model's configuration."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OperatorError(
            f"{path} can't be read ({error.strerror}): --model needs a folder with config.json"
        ) from error
    except ValueError as error:
        raise OperatorError(f"{path} is not a model's config.json: {error}") from error
