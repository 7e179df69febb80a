"""``mlx.hybrid-cache``: prefix hits for hybrid models on MLX.

MLX's component of the radix cache owns the states of a hybrid's recurrent layers. It is a subclass
of stock's, made without stock's constructor, and its slots are not those that stock's copies and
evictions know. Here it gets what it lacks: the constructor's values, the copy of a matched state,
and slots where too few are free.
"""

from __future__ import annotations

from typing import Any

from ....model.patching import Patching, replaces
from ..references import STOCKS, STOCKS_BEFORE
from . import (
    ALLOC,
    ARRAYS,
    BACKENDS,
    COMPONENT,
    CONTEXT,
    GROUPS,
    POOL,
    RELEASE,
    TREES,
)

MOST_BYTES = 2 << 30
"""Maximum total size of the states that no running request uses, unless the operator says how many
slots there are (``--max-mamba-cache-size``). Stock's default is four for each of up to 4096
requests, and one state of Qwen3-Next has 75 MB."""

_SAYS = "Can not alloc MLX auxiliary cache"


def install_without_backend(patching: Patching) -> None:
    """0.5.17 also makes an attention backend of PyTorch, which needs tensors of the pool."""

    @replaces(patching, BACKENDS)
    def init_attention_backends(self: Any, *, inner: Any) -> None:
        if not hasattr(self.req_to_token_pool, "auxiliary_state_pool"):
            inner(self)
            return
        patching.ran.seen = True
        self.attn_backend = None  # as later releases have it

    install_with_allocator(patching)


def install_with_allocator(patching: Patching) -> None:
    """0.5.18: the pool of requests has no ``mamba_allocator``, and slots have no groups."""

    @replaces(patching, POOL)
    def init(self: Any, *, inner: Any, **sizes: Any) -> None:
        inner(self, **sizes)
        self.mamba_allocator = self.auxiliary_state_pool

    for reference in GROUPS:
        patching.add(reference, lambda self, *_: None)
    install_before_move(patching)


def install_before_move(patching: Patching) -> None:
    """0.5.19."""
    _write_at_release(patching)
    _install(patching, STOCKS_BEFORE)


def install_before_rows(patching: Patching) -> None:
    """0.5.20 and 0.5.21."""
    _write_at_release(patching)
    _install(patching, STOCKS)


def install(patching: Patching) -> None:
    """From 0.5.22 on."""
    _install(patching, STOCKS)


def _write_at_release(patching: Patching) -> None:
    """Write what a request decoded into the pool while the request has its row, as 0.5.22 does.

    Stock writes it before a later prompt's prefill. That prompt may have the row by then: the KV
    would go to the slots of its prefix, which others share.
    """

    @replaces(patching, RELEASE)
    def prepare_for_kv_cache_release(self: Any, req: Any, *, inner: Any) -> None:
        inner(self, req)
        runner = self._mlx_runner
        if runner._get_auxiliary_state_pool() is not None and not runner.disable_radix_cache:
            runner._sync_decode_kv_to_pool(req.rid)
            runner._req_pool_idx.pop(req.rid, None)


def _install(patching: Patching, stocks: str) -> None:
    patching.anytime("a state that was not copied is computed again from the prompt, by stock")
    context: Any = patching.module(CONTEXT)
    eviction: Any = patching.module(TREES).EvictParams
    component: Any = patching.get(COMPONENT)
    arrays: Any = patching.get(ARRAYS)

    @replaces(patching, f"{COMPONENT}.__init__")
    def init(self: Any, cache: Any, params: Any, *, inner: Any) -> None:
        inner(self, cache, params)
        if hasattr(context, "mamba_cache_chunk_size"):
            self.mamba_cache_chunk_size = context.mamba_cache_chunk_size()
            self.mamba_checkpoint_grid = context.mamba_checkpoint_grid(params.page_size)
        else:  # 0.5.17
            self.mamba_cache_chunk_size = context.get_server_args().mamba_cache_chunk_size
        self.mamba_max_states_per_path = context.get_exec().mamba.mamba_max_states_per_path

    @replaces(patching, f"{stocks}.finalize_match_result_in_cache")
    def finalize_match_result_in_cache(self: Any, params: Any, result: Any, *, inner: Any) -> Any:
        result = inner(self, params, result)
        if not isinstance(self, component) or not params.cow_mamba:
            return result
        held = _held(params.req)
        if held.mamba_cow_src_index is not None:
            # Now, because until the request is admitted nothing keeps the source in its slot.
            slots = self.cache.req_to_token_pool.auxiliary_state_pool
            slots.copy_from(held.mamba_cow_src_index, held.mamba_pool_idx)
            held.mamba_cow_src_index = None
            patching.ran.seen = True
        return result

    @replaces(patching, f"{COMPONENT}.prepare_for_caching_req")
    def prepare_for_caching_req(
        self: Any,
        req: Any,
        insert_params: Any,
        token_ids_len: int,
        is_finished: bool,
        *,
        inner: Any,
    ) -> Any:
        surplus = _surplus(self.cache, _held(req), context, arrays)
        if surplus > 0:
            patching.ran.seen = True
            self.cache.evict(eviction(num_tokens=0, mamba_num=surplus))
        try:
            return inner(self, req, insert_params, token_ids_len, is_finished)
        except AssertionError as error:
            if str(error) != _SAYS:
                raise
            patching.ran.seen = True
            return 0  # tokens to cache, which is what stock returns if there is no state

    @replaces(patching, ALLOC)
    def alloc_req_slots(req_to_token_pool: Any, reqs: Any, tree_cache: Any, *, inner: Any) -> Any:
        slots = getattr(req_to_token_pool, "auxiliary_state_pool", None)
        if slots is not None and tree_cache.supports_mamba():
            needed = sum(_held(req).mamba_pool_idx is None for req in reqs)
            missing = needed - slots.available_size()
            if missing > 0:
                patching.ran.seen = True
                tree_cache.evict(eviction(num_tokens=0, mamba_num=missing))
        return inner(req_to_token_pool, reqs, tree_cache)


def _surplus(tree: Any, held: Any, context: Any, arrays: Any) -> int:
    """How many states to evict before one more is cached."""
    if held.mamba_pool_idx is None or context.get_schedule().max_mamba_cache_size is not None:
        return 0
    layers = tree.req_to_token_pool.auxiliary_state_pool._snapshots.get(int(held.mamba_pool_idx))
    size = sum(array.nbytes for layer in (layers or {}).values() for array in arrays(layer.state))
    return int(tree.mamba_evictable_size()) + 1 - MOST_BYTES // size if size else 0


def _held(req: Any) -> Any:
    """What holds a request's slots: in newer releases its KV record, in older ones the request."""
    record = getattr(req, "kv", None)
    return record if hasattr(record, "mamba_pool_idx") else req
