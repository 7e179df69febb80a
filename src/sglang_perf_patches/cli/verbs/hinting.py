"""What ``doctor --model`` says of a model: the sliding-window pool that its server could have."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...model.errors import OperatorError
from ...sets.swa.pool_ratio import hint as pool_hint


class ModelError(OperatorError, ValueError):
    """The model's ``config.json`` can't be read."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The model, and the arguments of its server that the pools follow from."""
    group = parser.add_argument_group(
        "a model",
        "what another --swa-full-tokens-ratio would bring; give the options of its server:",
    )
    group.add_argument("--model", type=Path, metavar="DIR", help="its folder, or its config.json")
    group.add_argument("--max-running-requests", type=_positive, metavar="N")
    group.add_argument(
        "--kv-gib", type=float, metavar="G", help="memory for KV on one GPU, in GiB (required)"
    )
    group.add_argument("--page-size", type=_positive, default=1, metavar="N")
    group.add_argument("--tp-size", type=_positive, default=1, metavar="N")
    group.add_argument("--chunked-prefill-size", type=_positive, default=8192, metavar="N")
    group.add_argument(
        "--kv-cache-bytes", type=_positive, default=2, metavar="N", help="bytes per value"
    )
    group.add_argument("--disable-radix-cache", action="store_true")


def hint(args: argparse.Namespace) -> pool_hint.Hint:
    """The hint that the options lead to.

    Raises:
        ModelError: the model's file is missing, no JSON, or lacks what the sizes follow from.
    """
    if args.kv_gib is None:
        args.parser.error("--model needs --kv-gib")
    if not args.kv_gib > 0:
        args.parser.error("--kv-gib needs a number above 0")
    path = args.model / "config.json" if args.model.is_dir() else args.model
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return pool_hint.hint(
            config,
            requests=args.max_running_requests,
            kv_bytes=int(args.kv_gib * 2**30),
            page_size=args.page_size,
            tensor_parallel=args.tp_size,
            value_bytes=args.kv_cache_bytes,
            chunked_prefill=args.chunked_prefill_size,
            prefix_cache=not args.disable_radix_cache,
        )
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not a model's config.json: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} does not describe a model's attention: {error!r}") from error


def data(args: argparse.Namespace) -> dict[str, Any]:
    """The hint as JSON data."""
    return asdict(hint(args))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("it must be 1 or more")
    return number
