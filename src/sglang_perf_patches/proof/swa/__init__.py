"""The cases of the swa set."""

from __future__ import annotations

from .. import Case

_HERE = f"{__name__}.compared"

CASES: tuple[Case, ...] = (
    Case(
        patch="swa.tail-prealloc",
        compare=f"{_HERE}:tail_prealloc",
        what="order and steps if everything fits, admission in order and no fewer, the KV of "
        "random episodes",
    ),
    Case(
        patch="swa.page-size-1",
        compare=f"{_HERE}:page_size_1",
        what="order and steps if everything fits, admission in order and no fewer, the KV of "
        "random episodes",
    ),
    Case(
        patch="swa.idle-admission",
        compare=f"{_HERE}:idle_admission",
        what="order and steps if everything fits, requests without max_tokens on an idle "
        "server, the KV of random episodes",
    ),
    Case(
        patch="swa.window-bounded-admission",
        compare=f"{_HERE}:window_bounded_admission",
        what="order and steps if everything fits, admission whatever max_new_tokens is, the "
        "KV of random episodes",
    ),
    Case(
        patch="swa.evict-before-retract",
        compare=f"{_HERE}:evict_before_retract",
        what="order and steps if everything fits, all tokens of a load that is retracted, "
        "the KV of random episodes",
    ),
    Case(
        patch="swa.pool-ratio",
        compare=f"{_HERE}:pool_ratio",
        what="pools of random budgets and stock's own at the same ratio",
    ),
    Case(
        patch="swa.eviction-heap",
        compare=f"{_HERE}:eviction_heap",
        what="which leaves go and in which order, the slots that requests get and what is left, in "
        "full prefix caches of random episodes",
    ),
)


def prepare() -> None:
    """Make this process fit for the cases, before sglang is imported."""
    import logging

    from .. import lent

    lent.lend()
    logging.getLogger("sglang").setLevel(logging.CRITICAL)  # about intended refusals
