"""``doctor --model``: how a model's server could divide its memory.

It sizes the sliding-window pool (`windows`) and, for a hybrid model, the slots for its states
(`states`, with the arithmetic in `split`) and the host's pools (`host`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...compat.source import Tree, TreeError
from ...model.errors import OperatorError
from ...sets.mamba.host_split import Cells
from ..verbs import measured_by, tree_at
from . import host as of_host
from . import split, windows
from . import states as of_states

_Found = TypeVar("_Found")


class ModelError(OperatorError, ValueError):
    """The model's ``config.json`` can't be read, or an option is missing for an answer."""


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("it must be 1 or more")
    return number


def _above_zero(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError("it must be above 0")
    return number


_OPTIONS: dict[str, tuple[Any, Any, str, str | None]] = {
    "max_running_requests": (None, _positive, "N", None),
    "kv_gib": (
        *(None, _above_zero, "G"),
        "memory for KV on one GPU, and for states, in GiB (required)",
    ),
    "context": (
        *(None, _positive, "N"),
        "tokens of a request, prompt and reply, on average (required for a hybrid model)",
    ),
    "hicache_size": (
        *(None, _above_zero, "GB"),
        "hierarchical cache of a hybrid model: memory of the host's pools for one GPU",
    ),
    "hicache_ratio": (None, _above_zero, "R", "the same as a multiple of the GPU's pools"),
    "page_size": (1, _positive, "N", None),
    "tp_size": (1, _positive, "N", None),
    "chunked_prefill_size": (8192, _positive, "N", None),
    "kv_cache_bytes": (2, _positive, "N", "bytes per value"),
}
"""Option → default, type, letter and help. They are only allowed with ``--model``."""


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the model, and the server's arguments that size its pools."""
    group = parser.add_argument_group(
        "a model",
        "To size the window pool (--swa-full-tokens-ratio) or the state pool "
        "(--max-mamba-cache-size) of a model, give its folder and the values of its server:",
    )
    group.add_argument("--model", type=Path, metavar="DIR", help="a folder with config.json")
    one = group.add_mutually_exclusive_group()
    for option, (_, kind, letter, text) in _OPTIONS.items():
        to = one if option.startswith("hicache") else group
        to.add_argument(_flag(option), type=kind, metavar=letter, help=text)
    group.add_argument("--disable-radix-cache", action="store_true", default=None)


def require_none(args: argparse.Namespace) -> None:
    """Refuse options about a model if there is no ``--model``.

    Raises:
        ModelError: one was given.
    """
    for option in (*_OPTIONS, "disable_radix_cache"):
        if getattr(args, option) is not None:
            raise ModelError(
                f"{_flag(option)} needs --model DIR; to ask about a server, give its whole "
                "command: sglang-perf-patches doctor -- python -m sglang.launch_server ..."
            )


@dataclass(frozen=True)
class Hints:
    """The hints that follow from the options.

    Attributes:
        pools: on the sliding-window pool.
        states: on slots for states; None for a model without states, or with an unknown kind.
        host: on the host's pools; None if not asked for, or if the release's rule is unknown.
    """

    pools: windows.Hint
    states: of_states.StateHint | None
    host: of_host.HostHint | None = None

    @classmethod
    def of(cls, args: argparse.Namespace, tree: Tree | None = None) -> Hints:
        """Compute the hints.

        Args:
            args: the options.
            tree: the release of the server; None for the installed one.

        Raises:
            ModelError: the model's file is missing, is not JSON or lacks a field; an option or a
                release is missing; or no request fits.
        """
        if not args.model.exists():
            raise ModelError(f"no folder {args.model}: --model needs a folder with config.json")
        for option, (default, *_) in _OPTIONS.items():
            if getattr(args, option) is None:
                setattr(args, option, default)
        if args.kv_gib is None:
            args.parser.error("--model needs --kv-gib")
        available = int(args.kv_gib * 2**30)
        states = _states(args, available, tree)
        return cls(_pools(args, available), states, _host(args, states))

    @property
    def text(self) -> str:
        """The hints in words."""
        parts = [self.states.text if self.states else self.pools.text]
        parts += [self.host.text] if self.host else []
        return "\n\n".join([*parts, f"measure: {self.measure}"] if self.measure else parts)

    @property
    def measure(self) -> str:
        """The command that measures the hint on the operator's server; "" if there is none."""
        if self.states:
            best = max(self.states.lines, key=lambda line: line.split.in_flight)
            limit = f"--max-running-requests {self.states.load.requests}"
            return measured_by(f"{best.give} {limit}") if best.give else ""
        ratio = self.pools.ratio
        return "" if ratio is None else measured_by(f"--swa-full-tokens-ratio {ratio:.3f}")

    @property
    def data(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "hint": asdict(self.pools),
            "states": self.states and asdict(self.states),
            "host": self.host and asdict(self.host),
            "measure": self.measure,
        }


def _pools(args: argparse.Namespace, available: int) -> windows.Hint:
    hint = _read(
        args,
        lambda config: windows.hint(
            config,
            requests=args.max_running_requests,
            kv_bytes=available,
            page_size=args.page_size,
            tensor_parallel=args.tp_size,
            value_bytes=args.kv_cache_bytes,
            chunked_prefill=args.chunked_prefill_size,
            prefix_cache=not args.disable_radix_cache,
        ),
    )
    if hint.reason == windows.NEEDS_REQUESTS:
        raise ModelError(hint.reason)
    return hint


def _states(
    args: argparse.Namespace, available: int, tree: Tree | None
) -> of_states.StateHint | None:
    """The hint on slots; None for a model without states, or with states of an unknown kind."""

    def named_cells(config: Any) -> tuple[str, Cells] | None:
        cells = split.cells_of(
            config, tensor_parallel=args.tp_size, value_bytes=args.kv_cache_bytes
        )
        return None if cells is None else (config["architectures"][0], cells)

    of_model = _read(args, named_cells)
    if of_model is None:
        return None
    for option in ("max_running_requests", "context"):
        if getattr(args, option) is None:
            raise ModelError(
                f"this is a hybrid model: {_flag(option)} is missing, the split depends on it"
            )
    load = split.Load(args.max_running_requests, args.context)
    try:
        hint = of_states.hint(
            *(tree or tree_at(), *of_model, load, available),
            prefix_cache=not args.disable_radix_cache,
        )
    except TreeError as error:
        raise ModelError(f"{error}: name the server's release with --sglang-version") from error
    if len(hint.lines) < 2:
        raise ModelError(f"{args.kv_gib:g} GiB hold no request of {args.context} tokens")
    return hint


def _host(args: argparse.Namespace, states: of_states.StateHint | None) -> of_host.HostHint | None:
    """The hint on the host's pools; None if no option asks for it."""
    host = of_host.Host(args.hicache_ratio or 0, args.hicache_size or 0)
    if not (host.ratio or host.gigabytes):
        return None
    if states is None or args.disable_radix_cache:
        raise ModelError(
            "--hicache-size and --hicache-ratio need a hybrid model and a prefix cache"
        )
    hint = of_host.hint(
        *(states.release, states.cells, states.lines[0].split, host),
        context=args.context,
        chunk=args.chunked_prefill_size,
    )
    if hint is None:
        raise ModelError(f"it is unknown how {states.release} divides the host's memory")
    return hint


def _read(args: argparse.Namespace, say: Callable[[Any], _Found]) -> _Found:
    """Read the model's configuration, and return what `say` computes from it."""
    path = args.model / "config.json" if args.model.is_dir() else args.model
    try:
        return say(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not a model's config.json: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} does not describe a model's attention: {error!r}") from error
