"""swa.window-bounded-admission: admission expects of a request what its window lets it grow to.

Stock's rule wants room for the tail of the prompt and for ``min(max_new_tokens, 4096)`` tokens
more in the sliding-window pool, though KV behind the window is given back while a request decodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ...model.patching import MISSING
from .tail_prealloc import DECODE, QUEUE
from .window import ceil_align, unserved

if TYPE_CHECKING:
    from ...model.patching import Patching

logger = logging.getLogger("sglang_perf_patches")


def install(patching: Patching) -> None:
    """Before 0.5.12, where swa.tail-prealloc asks one method what a request grows to."""
    serves = _serving(patching)

    def make(inner: Any) -> Any:
        def peak(self: Any, req: Any, held: int) -> int:
            """Sliding-window tokens that a request needs until it ends, at most."""
            tokens: int = inner(self, req, held)
            if not serves(self):
                return tokens
            patching.ran.seen = True
            return min(tokens, bound(self))

        return MISSING if inner is MISSING else peak

    patching.override(f"{QUEUE}._swa_peak_tokens", make)


def install_in_stock_rule(patching: Patching) -> None:
    """From 0.5.12: stock's own rule, given figures that bound what it adds up."""
    decode = patching.module(DECODE)
    serves = _serving(patching)

    def wanted(queue: Any, req: Any, held: int) -> int:
        new: int = min(req.sampling_params.max_new_tokens, decode.CLIP_MAX_NEW_TOKEN)
        return held + new

    def make_lengths(inner: Any) -> Any:
        def _prealloc_kv_lens(self: Any, req: Any) -> tuple[int, int]:
            full, swa = inner(self, req)
            if vars(self).get("_swa_prices_allocation") or not serves(self):
                return full, swa
            # Stock adds max_new_tokens to this: take off what is beyond the bound.
            patching.ran.seen = True
            return full, swa - max(0, wanted(self, req, swa) - bound(self))

        return _prealloc_kv_lens

    def make_required(inner: Any) -> Any:
        def _prealloc_required_tokens(self: Any, req: Any) -> tuple[int, int]:
            self._swa_prices_allocation = True  # what is allocated is not bounded by this patch
            try:
                required: tuple[int, int] = inner(self, req)
            finally:
                self._swa_prices_allocation = False
            return required

        return _prealloc_required_tokens

    def make_budget(inner: Any) -> Any:
        def _swa_tail_allocatable_token_budget(self: Any, *args: Any, **named: Any) -> int:
            running = self.scheduler.running_batch.reqs
            retractable = named.get("retractable_swa_tokens")
            if retractable is not None and running and serves(self):
                # Stock takes this off the largest want among running requests.
                wants = [
                    wanted(self, r, self._swa_tail_len(len(r.origin_input_ids))) for r in running
                ]
                beyond = max(0, max(wants) - bound(self))
                named["retractable_swa_tokens"] = retractable + beyond
            budget: int = inner(self, *args, **named)
            return budget

        return _swa_tail_allocatable_token_budget

    def make_check(inner: Any) -> Any:
        def _check_if_req_exceed_kv_capacity(self: Any, req: Any) -> bool:
            if inner(self, req):
                return True
            if not serves(self):
                return False
            # The prompt's tail, of a retracted request too: max_new_tokens has what it decoded.
            held = self._swa_tail_len(len(req.origin_input_ids))
            page = self.token_to_kv_pool_allocator.page_size
            peak = min(wanted(self, req, held), bound(self))
            need = max(self._prealloc_required_tokens(req)[1], peak)
            size = self.token_to_kv_pool_allocator.size_swa // page * page
            if need <= size:
                return False
            message = (
                f"Request {req.rid} needs sliding-window KV for {need} tokens while it decodes, "
                f"and that pool holds {size}"
            )
            logger.error(message)
            decode.prepare_abort(req, message, status_code=HTTPStatus.BAD_REQUEST)
            scheduler = self.scheduler
            stream = getattr(scheduler, "output_streamer", scheduler).stream_output
            stream([req], req.return_logprob)
            return True

        return _check_if_req_exceed_kv_capacity

    patching.override(f"{QUEUE}._prealloc_kv_lens", make_lengths)
    patching.override(f"{QUEUE}._prealloc_required_tokens", make_required)
    patching.override(f"{QUEUE}._swa_tail_allocatable_token_budget", make_budget)
    patching.override(f"{QUEUE}._check_if_req_exceed_kv_capacity", make_check)


def bound(queue: Any) -> int:
    """The most sliding-window KV that a request holds while it decodes, in tokens, whole pages.

    Its window, what it decodes until stock evicts again, the page that the window begins in, and
    the page before it, where stock keeps that too. From 0.5.14 to 0.5.17 stock evicts in every
    n-th step of the server: a request that does not decode in that step holds more for a while.
    """
    if "_swa_bound" not in vars(queue):
        page = queue.token_to_kv_pool_allocator.page_size
        window = queue.scheduler.sliding_window_size
        held = window + eviction_interval(window, page) + page + kept_margin(page)
        queue._swa_bound = ceil_align(held, page)
    return int(queue._swa_bound)


def eviction_interval(window: int, page_size: int) -> int:
    """How many tokens a request decodes between two evictions by stock, in tokens."""
    from sglang.srt.environ import envs

    if hasattr(envs, "SGLANG_SWA_EVICTION_INTERVAL"):
        return max(1, int(envs.SGLANG_SWA_EVICTION_INTERVAL.get()))
    if hasattr(envs, "SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER"):
        part = int(window * envs.SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER.get())
        return max(page_size, part // page_size * page_size)
    return window


def kept_margin(page_size: int) -> int:
    """How many tokens before the window eviction spares, in tokens: a page, 0.5.11 to 0.5.13."""
    from sglang.srt.environ import envs

    return page_size if hasattr(envs, "SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER") else 0


def _serving(patching: Patching) -> Callable[[Any], bool]:
    """A function that tells whether a queue is served; settled once for each queue."""

    def serves(queue: Any) -> bool:
        if "_swa_growth_bounded" not in vars(queue):
            reason = unserved(queue)
            if reason is None and not queue.scheduler.spec_algorithm.is_none():
                # A step decodes several tokens, and allocates for more: `bound` counts neither.
                reason = "speculative decoding is on"
            queue._swa_growth_bounded = reason is None and queue._uses_swa_tail_prealloc()
            if reason is not None:
                patching.gate(reason)
        return bool(queue._swa_growth_bounded)

    return serves
