"""The settings of a decode worker, and what is counted of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "stages": {"pp_size": 2},
    "replicas": {"dp_size": 2},
    "attention": {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True},
    "weights": {"tp_size": 2, "dwdp_size": 2},
    "attn-dp-size": {"tp_size": 2, "attn_dp_size": 2},
}
"""Layout → the arguments of a server that has it."""


@dataclass(frozen=True)
class Shape:
    """The settings of a decode worker.

    Attributes:
        window: None if the model has none.
        swa_tokens: size of the sliding-window pool.
        context: longest sequence, in tokens.
        in_transfer: most requests that are allocated and not in the batch.
        reserved: ``--num-reserved-decode-tokens``.
        transfer_steps: scheduling steps from a request's allocation to the end of its transfer.
        over_allocation: slots that each step allocates beyond the committed ones, as speculative
            decoding does.
        draft: of a speculative step, as the release resolves its arguments: draft tokens, all of
            which it decodes, steps of the draft model, and branches. None for a token a step.
        layout: of the server that is published, of which this is one rank: ``"one"``;
            ``"stages"``, a pipeline of two, which admits and resumes what both agreed on;
            ``"replicas"``, two of data parallelism, with a draft model; ``"attention"``, two of
            data-parallel attention, and from 0.5.22 on ``"attn-dp-size"``, its newer spelling;
            from 0.5.18 on ``"weights"``, two of experts whose weights are spread, which is
            data-parallel attention too.
        backup: ``--disaggregation-decode-retraction-backup``, from 0.5.18 on; ``"default"`` for a
            server that is not told, which then keeps retracted KV in a pool of the host.
    """

    window: int | None
    page_size: int
    swa_tokens: int
    full_tokens: int = 65536
    context: int = 2048
    running: int = 64
    in_transfer: int = 64
    reserved: int = 512
    transfer_steps: int = 1
    over_allocation: int = 0
    draft: tuple[int, int, int] | None = None
    layout: str = "one"
    backup: str = "default"


@dataclass
class Counts:
    """What happened since the start: requests, and decoded tokens."""

    steps: int = 0
    tokens: int = 0
    retractions: int = 0
    aborted: int = 0
    finished: int = 0
