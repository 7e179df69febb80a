"""Hybrid models run on MLX with the radix cache, and reuse cached prefixes.

MLX's component of the radix cache owns the states of a hybrid's recurrent layers. It is a subclass
of stock's, made without stock's constructor, and its slots are not those that stock's copies and
evictions know. Here it gets what it lacks: the constructor's values, the copy of a matched state,
and slots where too few are free.
"""

from ....model.declaration import Declaration, fixes
from ....model.patch import of
from ..proven import HYBRIDS
from ..references import MLX, RUNNER, STATES_SINCE, STOCKS, STOCKS_BEFORE

_MEMORY = "sglang.srt.mem_cache"
STATES = f"{MLX}.kv_cache.auxiliary_state"
COMPONENT = f"{STATES}:MlxAuxiliaryStateComponent"
ARRAYS = f"{STATES}:_arrays_in_tree"
CONTEXT = "sglang.srt.runtime_context"
TREES = f"{_MEMORY}.base_prefix_cache"
_UNIFIED = f"{_MEMORY}.unified_radix_cache:UnifiedRadixCache"
_BEFORE, _SINCE = "0.5.17 … 0.5.19", "0.5.20 …"

PATCH = Declaration(
    *(__name__, "0.5.17 … 0.5.23"),
    only_with=("mlx", "states"),
    # Without a prefix cache too: 0.5.17 does not start at all.
    proven_with=HYBRIDS,
    worth=fixes(
        "with a hybrid model and the radix cache, stock's MLX server crashes in its warm-up"
    ),
    anchors=STATES_SINCE,
    absent_because="before 0.5.17 hybrids on MLX have other faults",
    depends=(
        f"{COMPONENT}.cleanup_after_caching_req",
        ARRAYS,
        f"{STATES}:MlxAuxiliaryStatePool",
        f"{STATES}:MlxAuxiliaryStateReqToTokenPool",
        *of(_UNIFIED, "match_prefix", "evict", "mamba_evictable_size"),
        *of(RUNNER, "_restore_auxiliary_state", "_store_tracked_auxiliary_state"),
        *of(RUNNER, "_sync_decode_kv_to_pool", "_get_auxiliary_state_pool"),
    ),
    awaits=(CONTEXT, TREES),
    anytime="a state that was not copied is computed again from the prompt, by stock",
)
PATCH.on(_BEFORE, depends=(f"{STOCKS_BEFORE}.__init__",))
PATCH.on(_SINCE, depends=(f"{STOCKS}.__init__",))

MOST_BYTES = 2 << 30
"""Maximum total size of the states that no running request uses, unless the operator says how many
slots there are (``--max-mamba-cache-size``). Stock's default is four for each of up to 4096
requests, and one state of Qwen3-Next has 75 MB."""


@PATCH.setup()
def setup(patch):
    patch.state.component, patch.state.arrays = patch.get(COMPONENT), patch.get(ARRAYS)


@PATCH.replaces(
    "sglang.srt.model_executor.model_runner:ModelRunner.init_attention_backends", releases="0.5.17"
)
def init_attention_backends(self, *, patch, stock):
    """0.5.17 also makes an attention backend of PyTorch, which needs tensors of the pool."""
    if not hasattr(self.req_to_token_pool, "auxiliary_state_pool"):
        stock(self)
        return
    patch.ran.seen = True
    self.attn_backend = None  # as later releases have it


@PATCH.replaces(f"{STATES}:MlxAuxiliaryStateReqToTokenPool.__init__", releases="… 0.5.18")
def init_pool(self, *, stock, **sizes):
    """The pool of requests has no ``mamba_allocator``, and its slots have no groups."""
    stock(self, **sizes)
    self.mamba_allocator = self.auxiliary_state_pool


@PATCH.replaces(
    f"{STATES}:MlxAuxiliaryStatePool.alloc_group_begin",
    f"{STATES}:MlxAuxiliaryStatePool.alloc_group_end",
    releases="… 0.5.18",
    adds=True,
)
def alloc_group(self, *_):
    """A group of slots begins or ends."""


@PATCH.replaces(
    f"{MLX}.tp_worker:MlxTpModelWorker.prepare_for_kv_cache_release", releases="… 0.5.21"
)
def prepare_for_kv_cache_release(self, req, *, stock):
    """Write what a request decoded into the pool while the request has its row, as 0.5.22 does."""
    # Stock writes it before a later prompt's prefill. That prompt may have the row by then: the KV
    # would go to the slots of its prefix, which others share.
    stock(self, req)
    runner = self._mlx_runner
    if runner._get_auxiliary_state_pool() is not None and not runner.disable_radix_cache:
        runner._sync_decode_kv_to_pool(req.rid)
        runner._req_pool_idx.pop(req.rid, None)


@PATCH.replaces(f"{COMPONENT}.__init__")
def init(self, cache, params, *, patch, stock):
    context = patch.module(CONTEXT)
    stock(self, cache, params)
    if hasattr(context, "mamba_cache_chunk_size"):
        self.mamba_cache_chunk_size = context.mamba_cache_chunk_size()
        self.mamba_checkpoint_grid = context.mamba_checkpoint_grid(params.page_size)
    else:  # 0.5.17
        self.mamba_cache_chunk_size = context.get_server_args().mamba_cache_chunk_size
    self.mamba_max_states_per_path = context.get_exec().mamba.mamba_max_states_per_path


@PATCH.replaces(
    {
        _BEFORE: f"{STOCKS_BEFORE}.finalize_match_result_in_cache",
        _SINCE: f"{STOCKS}.finalize_match_result_in_cache",
    }
)
def finalize_match_result_in_cache(self, params, result, *, patch, stock):
    result = stock(self, params, result)
    if isinstance(self, patch.state.component) and params.cow_mamba:
        held = _held(params.req)
        if held.mamba_cow_src_index is not None:
            # Now, because until the request is admitted nothing keeps the source in its slot.
            slots = self.cache.req_to_token_pool.auxiliary_state_pool
            slots.copy_from(held.mamba_cow_src_index, held.mamba_pool_idx)
            held.mamba_cow_src_index = None
            patch.ran.seen = True
    return result


@PATCH.replaces(f"{COMPONENT}.prepare_for_caching_req")
def prepare_for_caching_req(self, req, insert_params, token_ids_len, is_finished, *, patch, stock):
    _evict(patch, self.cache, _surplus(patch, self.cache, _held(req)))
    try:
        return stock(self, req, insert_params, token_ids_len, is_finished)
    except AssertionError as error:
        if str(error) != "Can not alloc MLX auxiliary cache":
            raise
        patch.ran.seen = True
        return 0  # tokens to cache, which is what stock returns if there is no state


@PATCH.replaces(f"{_MEMORY}.allocation:alloc_req_slots")
def alloc_req_slots(req_to_token_pool, reqs, tree_cache, *, patch, stock):
    slots = getattr(req_to_token_pool, "auxiliary_state_pool", None)
    if slots is not None and tree_cache.supports_mamba():
        needed = sum(_held(req).mamba_pool_idx is None for req in reqs)
        _evict(patch, tree_cache, needed - slots.available_size())
    return stock(req_to_token_pool, reqs, tree_cache)


def _evict(patch, tree, states):
    if states > 0:
        patch.ran.seen = True
        tree.evict(patch.module(TREES).EvictParams(num_tokens=0, mamba_num=states))


def _surplus(patch, tree, held):
    """How many states to evict before one more is cached."""
    limit = patch.module(CONTEXT).get_schedule().max_mamba_cache_size
    if held.mamba_pool_idx is None or limit is not None:
        return 0
    states = tree.req_to_token_pool.auxiliary_state_pool._snapshots
    layers = (states.get(int(held.mamba_pool_idx)) or {}).values()
    size = sum(array.nbytes for layer in layers for array in patch.state.arrays(layer.state))
    return int(tree.mamba_evictable_size()) + 1 - MOST_BYTES // size if size else 0


def _held(req):
    """What holds a request's slots: in newer releases its KV record, in older ones the request."""
    record = getattr(req, "kv", None)
    return record if hasattr(record, "mamba_pool_idx") else req
