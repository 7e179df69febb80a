"""What ``doctor --model`` says of a model: how its server could divide its memory.

That is the sliding-window pool, and of a hybrid model the slots for its states.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...judge.source import Tree, TreeError
from ...model.errors import OperatorError
from ...sets.mamba import state_split
from ...sets.swa.pool_ratio import hint as pool_hint
from . import hinting_host, hinting_states, measured_by, tree_at

_Found = TypeVar("_Found")


class ModelError(OperatorError, ValueError):
    """The model's ``config.json`` can't be read, or more is needed to say something of it."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The model, and the arguments of its server that the pools follow from."""
    group = parser.add_argument_group(
        "a model",
        "what another --swa-full-tokens-ratio would bring, or for a hybrid model another "
        "--max-mamba-cache-size; give the options of its server:",
    )
    group.add_argument("--model", type=Path, metavar="DIR", help="its folder, or its config.json")
    group.add_argument("--max-running-requests", type=_positive, metavar="N")
    group.add_argument(
        "--kv-gib",
        type=float,
        metavar="G",
        help="memory for KV on one GPU, and for states, in GiB (required)",
    )
    group.add_argument(
        "--context",
        type=_positive,
        metavar="N",
        help="tokens of a request, prompt and reply, on average (required for a hybrid model)",
    )
    host = group.add_mutually_exclusive_group()
    host.add_argument(
        "--hicache-size",
        type=_above_zero,
        metavar="GB",
        help="of a hybrid model's hierarchical cache: what the host's pools take on one GPU",
    )
    host.add_argument(
        "--hicache-ratio", type=_above_zero, metavar="R", help="... over the device's"
    )
    group.add_argument("--page-size", type=_positive, metavar="N")
    group.add_argument("--tp-size", type=_positive, metavar="N")
    group.add_argument("--chunked-prefill-size", type=_positive, metavar="N")
    group.add_argument("--kv-cache-bytes", type=_positive, metavar="N", help="bytes per value")
    group.add_argument("--disable-radix-cache", action="store_true", default=None)


_DEFAULTS: dict[str, Any] = {
    "page_size": 1,
    "tp_size": 1,
    "chunked_prefill_size": 8192,
    "kv_cache_bytes": 2,
    "disable_radix_cache": False,
}
_ALL = ("max_running_requests", "kv_gib", "context", "hicache_size", "hicache_ratio", *_DEFAULTS)


def require_none(args: argparse.Namespace) -> None:
    """Say that an option about a model needs one, and how a server's own options are asked about.

    Raises:
        ModelError: one was given.
    """
    for option in _ALL:
        if getattr(args, option) is not None:
            raise ModelError(
                f"--{option.replace('_', '-')} needs --model DIR; to ask about a server, give its "
                "whole command: sglang-perf-patches doctor -- python -m sglang.launch_server ..."
            )


@dataclass(frozen=True)
class Hints:
    """What follows from the options.

    Attributes:
        pools: on the sliding-window pool.
        states: on slots for states; None for a model without any, or with some of an unknown kind.
        host: on the host's pools; None where nothing is asked, or the release's rule is not known.
    """

    pools: pool_hint.Hint
    states: hinting_states.StateHint | None
    host: hinting_host.HostHint | None = None

    @classmethod
    def of(cls, args: argparse.Namespace, tree: Tree | None = None) -> Hints:
        """What follows from them.

        Args:
            args: the options.
            tree: the release of the server; None for the installed one.

        Raises:
            ModelError: the model's file is missing, no JSON, or lacks what the sizes follow from,
                or an option or a release is missing, or no request fits.
        """
        for option, default in _DEFAULTS.items():
            if getattr(args, option) is None:
                setattr(args, option, default)
        pools, states = _pools(args), _states(args, tree)
        return cls(pools, states, _host(args, states))

    @property
    def text(self) -> str:
        """For an operator."""
        text = self.states.text if self.states else self.pools.text
        if self.host:
            text = f"{text}\n\n{self.host.text}"
        return f"{text}\n\nmeasure: {self.measure}" if self.measure else text

    @property
    def measure(self) -> str:
        """The command that measures what is hinted at on an own server; empty for nothing."""
        if self.states:
            best = max(self.states.lines, key=lambda line: line.split.in_flight)
            limit = f"--max-running-requests {self.states.load.requests}"
            return measured_by(f"{best.give} {limit}") if best.give else ""
        ratio = self.pools.ratio
        return "" if ratio is None else measured_by(f"--swa-full-tokens-ratio {ratio:.3f}")

    @property
    def data(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "hint": asdict(self.pools),
            "states": self.states and asdict(self.states),
            "host": self.host and asdict(self.host),
            "measure": self.measure,
        }


def _pools(args: argparse.Namespace) -> pool_hint.Hint:
    hint = _read(
        args,
        lambda config: pool_hint.hint(
            config,
            requests=args.max_running_requests,
            kv_bytes=_bytes(args),
            page_size=args.page_size,
            tensor_parallel=args.tp_size,
            value_bytes=args.kv_cache_bytes,
            chunked_prefill=args.chunked_prefill_size,
            prefix_cache=not args.disable_radix_cache,
        ),
    )
    if hint.reason == pool_hint.NEEDS_REQUESTS:
        raise ModelError(hint.reason)
    return hint


def _states(args: argparse.Namespace, tree: Tree | None) -> hinting_states.StateHint | None:
    """None for a model without states, or with states of an unknown kind."""

    def named_cells(config: Any) -> tuple[str, state_split.Cells] | None:
        cells = state_split.cells_of(
            config, tensor_parallel=args.tp_size, value_bytes=args.kv_cache_bytes
        )
        return None if cells is None else (config["architectures"][0], cells)

    available = _bytes(args)
    of_model = _read(args, named_cells)
    if of_model is None:
        return None
    for option in ("max_running_requests", "context"):
        if getattr(args, option) is None:
            words = f"--{option.replace('_', '-')}"
            raise ModelError(f"the model is a hybrid one: give {words}, the split follows from it")
    load = state_split.Load(args.max_running_requests, args.context)
    try:
        hint = hinting_states.hint(
            *(tree or tree_at(), *of_model, load, available),
            prefix_cache=not args.disable_radix_cache,
        )
    except TreeError as error:
        raise ModelError(f"{error}: name the server's release with --sglang-version") from error
    if len(hint.lines) < 2:
        raise ModelError(f"{args.kv_gib:g} GiB hold no request of {args.context} tokens")
    return hint


def _host(
    args: argparse.Namespace, states: hinting_states.StateHint | None
) -> hinting_host.HostHint | None:
    """None where nothing is asked of the host."""
    host = hinting_host.Host(args.hicache_ratio or 0, args.hicache_size or 0)
    if not (host.ratio or host.gigabytes):
        return None
    if states is None or args.disable_radix_cache:
        raise ModelError("the host's split is that of a hybrid model with a prefix cache")
    hint = hinting_host.hint(
        *(states.release, states.cells, states.lines[0].split, host),
        context=args.context,
        chunk=args.chunked_prefill_size,
    )
    if hint is None:
        raise ModelError(f"how {states.release} divides the host's memory is not known here")
    return hint


def _bytes(args: argparse.Namespace) -> int:
    """Of memory for KV and states."""
    if args.kv_gib is None:
        args.parser.error("--model needs --kv-gib")
    if not args.kv_gib > 0:
        args.parser.error("--kv-gib needs a number above 0")
    return int(args.kv_gib * 2**30)


def _read(args: argparse.Namespace, say: Callable[[Any], _Found]) -> _Found:
    """What `say` makes of the model's configuration."""
    path = args.model / "config.json" if args.model.is_dir() else args.model
    try:
        return say(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not a model's config.json: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} does not describe a model's attention: {error!r}") from error


def _above_zero(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError("it must be above 0")
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("it must be 1 or more")
    return number
