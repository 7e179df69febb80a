"""swa.window-bounded-admission: admission counts a request by what its window lets it hold.

Stock's rule wants room for the tail of the prompt and for ``min(max_new_tokens, 4096)`` tokens
more in the sliding-window pool, though KV behind the window is freed while a request decodes.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ....model.patching import MISSING
from .. import growth
from ..references import DECODE, QUEUE
from ..window import serving

if TYPE_CHECKING:
    from ....model.patching import Patching

logger = logging.getLogger("sglang_perf_patches")


def install(patching: Patching) -> None:
    """Before 0.5.12: swa.tail-prealloc uses one method for the size that a request grows to."""
    patching.anytime("it holds nothing of a request that it admitted: stock's rule counts more")
    serves = serving(patching, "_swa_growth_bounded")

    def make(inner: Any) -> Any:
        def peak(self: Any, req: Any, held: int, idle: bool) -> int:
            """Sliding-window tokens that a request needs until it ends, at most."""
            tokens: int = inner(self, req, held, idle)
            if not serves(self):
                return tokens
            patching.ran.seen = True
            return min(tokens, growth.bound(self))

        return MISSING if inner is MISSING else peak

    patching.override(f"{QUEUE}._swa_peak_tokens", make)


def install_in_stock_rule(patching: Patching) -> None:
    """From 0.5.12 on: stock's own rule with bounded figures."""
    patching.anytime("it holds nothing of a request that it admitted: stock's rule counts more")
    decode = patching.module(DECODE)
    serves = serving(patching, "_swa_growth_bounded")
    growth.limit_growth(patching, serves)

    def make_budget(inner: Any) -> Any:
        def _swa_tail_allocatable_token_budget(
            self: Any,
            retractable_tokens: Any = None,
            retractable: Any = None,
            *args: Any,
            **kwargs: Any,
        ) -> int:
            running = self.scheduler.running_batch.reqs
            if retractable is not None and running and serves(self):
                # Stock subtracts this from the largest need among running requests.
                wants = [
                    growth.wanted(decode, r, self._swa_tail_len(len(r.origin_input_ids)))
                    for r in running
                ]
                beyond = max(0, max(wants) - growth.bound(self))
                retractable += beyond
            budget: int = inner(self, retractable_tokens, retractable, *args, **kwargs)
            return budget

        return _swa_tail_allocatable_token_budget

    def make_check(inner: Any) -> Any:
        def _check_if_req_exceed_kv_capacity(self: Any, req: Any) -> bool:
            if inner(self, req):
                return True
            if not serves(self):
                return False
            # The prompt's tail, even if retracted: max_new_tokens includes the decoded tokens.
            held = self._swa_tail_len(len(req.origin_input_ids))
            page = self.token_to_kv_pool_allocator.page_size
            peak = min(growth.wanted(decode, req, held), growth.bound(self))
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

    patching.override(f"{QUEUE}._swa_tail_allocatable_token_budget", make_budget)
    patching.override(f"{QUEUE}._check_if_req_exceed_kv_capacity", make_check)
