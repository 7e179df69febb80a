"""The settings of a decode worker, and what is counted of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "stages": {"pp_size": 2},  # a pipeline: admits and resumes what both agreed on
    "replicas": {"dp_size": 2},  # data parallelism, with a draft model
    "attention": {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True},
    # From 0.5.18 on: experts whose weights are spread, which is data-parallel attention too.
    "weights": {"tp_size": 2, "dwdp_size": 2},
    "attn-dp-size": {"tp_size": 2, "attn_dp_size": 2},  # from 0.5.22 on: "attention" by a new name
}
"""Layout → the arguments of a server that has it."""


@dataclass(frozen=True)
class Shape:
    """The settings of a decode worker."""

    window: int | None  # None if the model has none
    page_size: int
    swa_tokens: int  # size of the sliding-window pool
    full_tokens: int = 65536
    context: int = 2048  # longest sequence, in tokens
    running: int = 64
    in_transfer: int = 64  # most requests that are allocated and not in the batch
    reserved: int = 512  # ``--num-reserved-decode-tokens``
    transfer_steps: int = 1  # from a request's allocation to the end of its transfer
    over_allocation: int = 0  # slots a step beyond the committed ones, as speculation has them
    # Of a speculative step, as the release resolves its arguments: draft tokens, all of which it
    # decodes, steps of the draft model, and branches. None for a token a step.
    draft: tuple[int, int, int] | None = None
    layout: str = "one"  # of the server of which this is one rank: see `LAYOUTS`
    # ``--disaggregation-decode-retraction-backup``, from 0.5.18 on; "default" for a server that is
    # not told, which then keeps retracted KV in a pool of the host.
    backup: str = "default"


@dataclass
class Counts:
    """What happened since the start: requests, and decoded tokens."""

    steps: int = 0
    tokens: int = 0
    retractions: int = 0
    aborted: int = 0
    finished: int = 0
    peak_admitted: int = 0
