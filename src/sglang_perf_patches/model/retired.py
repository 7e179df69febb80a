"""Names of patches that are gone: a selection that has one says so in a line, and goes on.

Whoever upgrades keeps a selection that names them. It is no error, and it changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_NEXT = "0.2.0"


@dataclass(frozen=True, kw_only=True)
class Retired:
    """A patch that is gone.

    Attributes:
        since: the first version of this package without it.
        because: why.
        instead: what of stock's, or of ours, does its work, and where; empty if nothing does.
    """

    since: str
    because: str
    instead: str = ""


@dataclass(frozen=True, kw_only=True)
class Alias:
    """An old name of a patch.

    Attributes:
        since: the first version of this package in which it is one.
        patch: the patch that it means now.
    """

    since: str
    patch: str


_NO_GAIN = "no gain was measured"

RETIRED: dict[str, Retired] = {
    "mamba.flashinfer-plan": Retired(since=_NEXT, because=_NO_GAIN),
    "mamba.gdn-prefill-graph-triton": Retired(
        since=_NEXT,
        because="it changed tokens",
        instead="mamba.gdn-prefill-graph serves FlashInfer's own kernel, bit by bit",
    ),
    "mamba.layer-views": Retired(
        since=_NEXT, because="no gain beyond the spread was measured", instead="0.5.16 does it"
    ),
    "mamba.pd-state-index": Retired(
        since=_NEXT, because="no prefill server was measured, and few requests paid 40 to 140 µs"
    ),
    "mla.flashinfer-host-indptr": Retired(
        since=_NEXT,
        because=_NO_GAIN,
        instead="stock's own switch is SGLANG_OPT_FLASHINFER_DRAFT_HOST_INDPTR, from 0.5.23 on",
    ),
    "mla.flashinfer-plan": Retired(
        since=_NEXT, because=_NO_GAIN, instead="upstream has it since 0.5.18"
    ),
    "mla.flashinfer-verify-plan": Retired(
        since=_NEXT,
        because=_NO_GAIN,
        instead=(
            "stock's own switch is SGLANG_OPT_FLASHINFER_VERIFY_HOST_PLAN, from 0.5.23 on, for "
            "topk = 1"
        ),
    ),
    "mla.mask-scratch": Retired(
        since=_NEXT, because=_NO_GAIN + " end to end", instead="upstream has it since 0.5.17"
    ),
    "mla.shared-draft-tables": Retired(since=_NEXT, because=_NO_GAIN + " in an Engine"),
    "mla.shared-flashmla-tables": Retired(
        since=_NEXT, because="nothing of it was measured on a machine with the kernel"
    ),
    "mla.verify-mask-fill": Retired(since=_NEXT, because=_NO_GAIN + " in an Engine"),
    "mlx.merged-state": Retired(since=_NEXT, because="no gain beyond the spread was measured"),
    "swa.free-without-sync": Retired(
        since=_NEXT,
        because="no gain was measured at the default eviction interval",
        instead="upstream has it since 0.5.20",
    ),
}
"""Name → why it is gone."""

ALIASES: dict[str, Alias] = {
    "mamba.track-mask": Alias(since=_NEXT, patch="mamba.zero-sync"),
    "mla.shared-block-tables": Alias(since=_NEXT, patch="mla.draft-metadata"),
    "mlx.cache-growth": Alias(since=_NEXT, patch="mlx.kv-arena"),
    "mlx.step-mask": Alias(since=_NEXT, patch="mlx.kv-arena"),
}
"""Old name → what it means."""


def resolved(name: str) -> str:
    """The name of today for an old one; any other as it is."""
    return ALIASES[name].patch if name in ALIASES else name


def line(name: str, present: Collection[str]) -> str | None:
    """What there is to say of a name that somebody chose; None of one that is neither.

    Args:
        name: as it was written, without a leading ``-``.
        present: the ids that exist. One that is there is not retired.
    """
    if name in present:
        return None
    if name in RETIRED:
        gone = RETIRED[name]
        instead = f"; {gone.instead}" if gone.instead else ""
        return f"{name} is retired in {gone.since}: {gone.because}{instead}"
    if name in ALIASES and ALIASES[name].patch in present:
        return f"{name} is part of {ALIASES[name].patch} since {ALIASES[name].since}: that is meant"
    return None
