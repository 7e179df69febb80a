"""``mamba.slot-exhaustion``: if no slot for a state is left, requests wait and the scheduler lives.

Stock takes slots at four places, and asserts at each that it got one. The prefix cache takes one
to cache an unfinished request, one for the copy of the state that a new request matched, and one
for a state that comes back from the host. The pool takes those of admitted requests
(`HybridReqToTokenPool.alloc`). The first is optional work, so it is left out. The third is as
optional: without it the prefix is computed again. For the other two, admission refuses a request
whose slots are not there.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from operator import length_hint
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

from ....model.patching import Patching
from ..references import holder
from . import ADDER, PATCH, POLICY, POOLS, RADIX, TREES, UNIFIED, of_component

logger = logging.getLogger("sglang_perf_patches")


class _NoSlot(Exception):
    """A request's slots are not there: raised at the last point before stock admits it.

    All other reasons to refuse come before that point, so stock's own answers stay as they are.
    """


@PATCH.setup()
def setup(patch):
    state = patch.state
    # Requests that matched a prefix whose state could not be copied for them. Stock would prefill
    # such a request after its prefix with an empty state, so it is not admitted. A match is
    # followed by admission or refusal in the same round of the scheduler; until then the patch must
    # not be taken off.
    waiting: WeakSet[Any] = WeakSet()
    state.waiting = waiting
    patch.drain(lambda: not waiting, "a request without a slot has been refused")
    state.answers = patch.module(POLICY).AddReqResult
    state.with_slots = patch.module(POOLS).HybridReqToTokenPool
    state.eviction = patch.module(TREES).EvictParams
    state.adder = None  # which admits a request now, if a state may come back from the host then
    state.slots_stay = state.loads = state.loaded = False


@PATCH.setup("0.5.9")
def setup_where_slots_stay(patch):
    """Stock's scheduler leaves a refused request the slot of its match.

    The slot is given back, because requests that were admitted before may need it.
    """
    patch.state.slots_stay = True


@PATCH.setup("0.5.17 …")
def setup_loads(patch):
    """A state may come back from the host while a request is admitted."""
    patch.state.loads = True


# -- prefix caches -------------------------------------------------------------------------------


@PATCH.replaces(f"{RADIX}.cache_unfinished_req", releases="… 0.5.15.post1")
def cache_unfinished_req(self, req, chunked=False, *, patch, stock):
    try:
        stock(self, req, chunked)
    except AssertionError as error:
        if not _is_exhausted(error):
            raise
        patch.ran.seen = True
        # With caching off, stock's function leaves the request's KV with the request and does not
        # touch the tree. The failed call left the request as it was: stock takes the slot before it
        # inserts.
        self.disable = True
        try:
            stock(self, req, chunked)
        finally:
            self.disable = False
        # As stock does after it cached: what was tracked must not be cached later.
        holder(req).mamba_last_track_seqlen = None


@PATCH.replaces(f"{RADIX}.match_prefix", releases="… 0.5.15.post1")
def match_prefix(self, params, *, patch, stock):
    return _matched(patch, self, params, lambda given: stock(self, given))


@PATCH.replaces(of_component("prepare_for_caching_req"))
def prepare_for_caching_req(self, req, insert_params, token_ids_len, is_finished, *, patch, stock):
    try:
        return stock(self, req, insert_params, token_ids_len, is_finished)
    except AssertionError as error:
        if is_finished or not _is_exhausted(error) or _has_storage(self.cache):
            raise
        patch.ran.seen = True
        return 0  # tokens to cache, which is what stock returns if it tracked no state


@PATCH.replaces(of_component("finalize_match_result", "0.5.16"))
def finalize_match_result(self, result, params, *args, patch, stock):
    return _matched(patch, self.cache, params, lambda given: stock(self, result, given, *args))


@PATCH.replaces(of_component("finalize_match_result_in_cache", "0.5.17 … 0.5.19", "0.5.20 …"))
def finalize_match_result_in_cache(self, params, *args, patch, stock):
    return _matched(patch, self.cache, params, lambda given: stock(self, given, *args))


def _matched(patch: Patching, tree: Any, params: Any, match: Callable[[Any], Any]) -> Any:
    """Stock's match; if no slot is left for the copy of the state, the match without that copy."""
    if _has_storage(tree) or not params.cow_mamba:
        return match(params)
    waiting = patch.state.waiting
    waiting.discard(params.req)  # one whose prefetch goes on is matched again before it is admitted
    try:
        return match(params)
    except AssertionError as error:
        if not _is_exhausted(error):
            raise
        patch.ran.seen = True
        waiting.add(params.req)
        without = copy.copy(params)
        without.cow_mamba = False
        return match(without)


def _has_storage(tree: Any) -> bool:
    return bool(getattr(tree, "buffer_pipeline", None) or getattr(tree, "enable_storage", False))


def _is_exhausted(error: AssertionError) -> bool:
    """Whether a prefix cache found no slot: stock says so in these words in all releases."""
    return str(error) == "Can not alloc mamba cache"


# -- admission -----------------------------------------------------------------------------------


def _serves(patch: Patching, adder: Any) -> bool:
    """MLX and caches without states have their own pools."""
    tree = adder.tree_cache
    if not tree.supports_mamba() or tree.disable:
        return False
    if _has_storage(tree):
        patch.gate("the hierarchical cache has a storage backend, which was not tested")
        return False
    return isinstance(tree.req_to_token_pool, patch.state.with_slots)


@PATCH.replaces(f"{ADDER}.add_one_req")
def add_one_req(self, req, has_chunked_req, truncation_align_size, *, patch, stock):
    state = patch.state
    if state.loads and _serves(patch, self):
        # What can be had before stock locks the prefix that the request matched.
        state.adder, state.before = self, obtainable(self.tree_cache)
    try:
        answer = stock(self, req, has_chunked_req, truncation_align_size)
        # An admitted request is the last of the list; any other was refused.
        if state.slots_stay and _serves(patch, self) and req not in self.can_run_list[-1:]:
            patch.ran.seen |= _return_slot(self.tree_cache.req_to_token_pool, req)
        return answer
    except _NoSlot:
        patch.ran.seen = True
        _return_slot(self.tree_cache.req_to_token_pool, req)
    finally:
        state.waiting.discard(req)
        state.adder, state.loaded = None, False
    # NO_TOKEN makes the scheduler mark its batch as full, until a running request ends. With
    # nothing running no request ends, and some releases would never try again.
    if self.can_run_list or (self.running_batch is not None and self.running_batch.reqs):
        return state.answers.NO_TOKEN
    if not (_makes_room(self.tree_cache, req, state.eviction) or _are_held(self.tree_cache)):
        _tell(self, req)
    return state.answers.OTHER


def _lacks_slots(patch: Patching, adder: Any, req: Any) -> bool:
    """Whether the pool has too few slots for this request and those admitted before it.

    Called while the node that the request matched is locked, as it will be after admission: its
    state can't be evicted then, so it must not count as obtainable.
    """
    state, tree = patch.state, adder.tree_cache
    if not _serves(patch, adder) or state.loaded:  # its slots were counted before the load
        return False
    pool = tree.req_to_token_pool
    others = [each for each in adder.can_run_list if each is not req]
    return req in state.waiting or needed(pool, [*others, req]) > obtainable(tree)


@PATCH.replaces(f"{ADDER}._req_inc_lock_ref", releases="… 0.5.19")
def _req_inc_lock_ref(self, req, *, patch, stock):
    if _lacks_slots(patch, self, req):
        # These releases add the request to their lists just before they lock its node.
        self.can_run_list.remove(req)
        if self.new_chunked_req is req:
            self.new_chunked_req = None
        raise _NoSlot
    return stock(self, req)


@PATCH.replaces(f"{ADDER}._commit_prefill_admission", releases="0.5.20 …")
def _commit_prefill_admission(self, req, admission, mamba_gap_reserve, *, patch, stock):
    if _lacks_slots(patch, self, req):
        raise _NoSlot
    return stock(self, req, admission, mamba_gap_reserve)


@PATCH.replaces(f"{UNIFIED}.load_back", releases="0.5.17 …")
def load_back(self, node_id, mem_quota, req, *, patch, stock):
    state = patch.state
    # Only a state takes slots; the match knows whether one comes.
    if state.adder is None or req is None or not req.mamba_host_hit_length:
        return stock(self, node_id, mem_quota, req)
    refused = _lacks_slots_to_load(state.adder, state.before, req)
    patch.ran.seen |= refused
    state.loaded = not refused and bool(stock(self, node_id, mem_quota, req))
    if not state.loaded:
        _copy_last_on_device(self, req)
    return state.loaded


def _lacks_slots_to_load(adder: Any, before: int, req: Any) -> bool:
    """Whether stock would die where a request's state comes back from the host.

    It asserts that it gets a slot for the request. Then it takes one for the cache, and calls the
    load off if it gets none; but it asserts again when the batch gets its slots. Once the state is
    there its node is locked instead of the one that the request matched.
    """
    tree, left = adder.tree_cache, adder.rem_chunk_tokens
    now = obtainable(tree)
    own = holder(req).mamba_pool_idx is None
    # Up to 0.5.19 stock refuses after the load if no page is left of the chunk: no batch asserts.
    if now <= own or (left is not None and left < adder.page_size):
        return now < own
    others = [each for each in adder.can_run_list if each is not req]
    return needed(tree.req_to_token_pool, [*others, req]) + 1 > before


def _copy_last_on_device(tree: Any, req: Any) -> None:
    """Copy the state of the last node that has one on the device.

    Stock copies that of the last node of all, which is on the host: the copy would be empty.
    """
    match = SimpleNamespace(req=req, best_match_node=req.last_node, cow_mamba=True)
    for component in tree.components.values():
        component.finalize_match_result_in_cache(match, match)


def needed(pool: Any, reqs: Sequence[Any]) -> int:
    """Slots that a ``HybridReqToTokenPool`` will take in its ``alloc`` for a batch's requests."""
    tracked = 0
    if pool.enable_mamba_extra_buffer:
        tracked = pool.mamba_ping_pong_track_buffer_size
        if getattr(pool, "enable_mamba_extra_buffer_lazy", False):
            tracked = 1  # the second one is taken when it is needed, and done without
    count = 0
    for held in map(holder, reqs):
        count += held.mamba_pool_idx is None
        count += tracked if held.mamba_ping_pong_track_buffer is None else 0
    return count


def obtainable(tree: Any) -> int:
    """Slots that are free, and those that the prefix cache would free for others."""
    slots = _slots(tree.req_to_token_pool)
    # While stock matches requests, it sets slots aside for their copies: these are still free.
    aside = length_hint(getattr(slots, "_alloc_iter", None) or ())
    return int(slots.available_size() + aside + tree.mamba_evictable_size())


def _makes_room(tree: Any, req: Any, eviction: Any) -> bool:
    """Free cached states for a request of an idle server; False if that is not enough.

    While it was refused, the prefix that it matched was locked. If only its state blocks it, none
    else will free a slot. So it is evicted, and the request starts without it in the next round.
    """
    count = needed(tree.req_to_token_pool, [req])
    if count > obtainable(tree):
        return False
    missing = count - _slots(tree.req_to_token_pool).available_size()
    if missing > 0:
        tree.evict(eviction(num_tokens=0, mamba_num=int(missing)))
    return True


def _are_held(tree: Any) -> bool:
    """Whether requests hold slots: on a prefill server those whose KV is sent, while none runs."""
    slots = tree.req_to_token_pool.mamba_pool.size
    return bool(obtainable(tree) + tree.mamba_protected_size() < slots)


def _return_slot(pool: Any, req: Any) -> bool:
    """Give back the slot that a match took for the request; returns whether it had one."""
    held = holder(req)
    if held.mamba_pool_idx is None:
        return False
    _slots(pool).free(held.mamba_pool_idx.unsqueeze(-1))
    held.mamba_pool_idx = None
    if hasattr(held, "mamba_cow_src_index"):
        held.mamba_cow_src_index = None
        held.mamba_needs_clear = False
    return True


def _tell(adder: Any, req: Any) -> None:
    """Log once that a request waits on an idle server."""
    if getattr(req, "_waits_for_slots", False):
        return
    req._waits_for_slots = True
    pool = adder.tree_cache.req_to_token_pool
    logger.warning(
        "Request %s waits: it needs %d state slots, nothing runs, and of the server's %d slots %d "
        "can be had. Raise --max-mamba-cache-size or --mamba-full-memory-ratio.",
        *(req.rid, needed(pool, [req]), pool.mamba_pool.size, obtainable(adder.tree_cache)),
    )


def _slots(pool: Any) -> Any:
    """The allocator of slots: from 0.5.13 on an object of its own, before that the pool itself."""
    return getattr(pool, "mamba_allocator", None) or pool.mamba_pool
