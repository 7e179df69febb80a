"""Computes waiting prompts of similar length in one pass.

Stock's worker launches the prompts of a batch one after the other. The patch lets it note them,
computes those of like length together, and then has stock's own function launch each: where that
calls the model, it gets its row. What stock does around the model stays, from tracking to sampling.
"""

from dataclasses import replace
from functools import partial

from ....model.declaration import Declaration
from ....model.patch import of
from ..proven import PREFILL_AND_DECODE
from ..references import ATTENTION, MLX, RUNNER, WRAPPER

FORWARD = f"{RUNNER}._forward_lazy_token"
"""Calls the model for one prompt, or for a part of it."""

PATCH = Declaration(
    *(__name__, "0.5.18 … 0.5.23"),
    only_with=("mlx", "several-requests"),
    proven_with=PREFILL_AND_DECODE,
    anchors=(FORWARD,),
    absent_because="this release calls the model from several places",
    depends=(
        *of(RUNNER, "_extract_logits", "_materialize_pool_backed_attention"),
        *of(RUNNER, "_cache_with_pool_backed_attention", "cache_state_arrays"),
        *of(RUNNER, "_new_cache_skeleton", "_restore_auxiliary_state"),
        *of(RUNNER, "_select_auxiliary_state_track_len", "_store_tracked_auxiliary_state"),
        *of(MLX, "model_runner:MlxPendingPrefill", "kv_cache.layout:MlxModelCacheLayout"),
        f"{WRAPPER}:MLXAttentionWrapper.__call__",
        *of(MLX, "tp_worker:MlxLaunch", "sampling:lazy_logprob_arrays"),
        f"{MLX}.kv_cache.attention_kv_cache:make_attention_mask",
        f"{MLX}.kv_cache.attention_kv_cache:PoolBackedAttentionKVCache",
        f"{MLX}.kv_cache.attention_kv_cache:WindowedAttentionKVCache",
        f"{MLX}.kv_cache.attention_kv_pool:MlxAttentionKVPool.get_kv",
        ATTENTION,
    ),
    awaits=(f"{MLX}.sampling", f"{MLX}.kv_cache.attention_kv_cache"),
    anytime="a batch's prompts are noted and launched within one call",
)


@PATCH.setup()
def setup(patch):
    from .body import Batches, Noted

    patch.state.core = patch.module("mlx.core")
    patch.state.sampling = patch.module(f"{MLX}.sampling")
    patch.state.batches, patch.state.noted = Batches(patch), Noted
    patch.state.is_noting = False  # a batch's prompts are being noted


@PATCH.replaces(f"{MLX}.tp_worker:MlxTpModelWorker._async_extend_batch")
def async_extend_batch(self, batch, *, patch, stock):
    """Launch a batch: continued and decoding requests at once, then the new prompts."""
    runner, core = self._mlx_runner, patch.state.core
    patch.state.is_noting = True
    try:
        launch = stock(self, batch)
    finally:
        patch.state.is_noting = False
    if not launch.prefills:
        return launch
    prefills = patch.state.batches.launch(runner, launch.prefills)
    tokens = core.stack([each.lazy_token for each in (*prefills, *launch.extends)], axis=0)
    core.async_eval(
        tokens,
        runner.cache_state_arrays([each.cache for each in prefills]),
        [patch.state.sampling.lazy_logprob_arrays(each.lazy_logprobs) for each in prefills],
    )
    return replace(launch, prefills=prefills, lazy_tokens=tokens)


@PATCH.replaces(f"{RUNNER}.prefill_start")
def prefill_start(self, req_id, new, full, prefix_slots, *more, patch, stock):
    """Launch a prompt, or note it while its batch is launched."""
    launch = partial(stock, self, req_id, new, full, prefix_slots, *more)
    if not patch.state.is_noting:
        return launch()
    _, row, req, needs_logits, *_ = more
    tokens = [*full[: len(prefix_slots)], *new] if needs_logits else []
    if self._cache_layout.has_sliding_window_layers:
        prefix_slots = ()  # Stock keeps no KV of windows there, and computes all again.
    nothing = patch.state.core.zeros((1,), patch.state.core.uint32)
    return patch.state.noted(launch, req_id, prefix_slots, tokens, row, req, nothing)


@PATCH.replaces(FORWARD)
def forward_lazy_token(self, input_ids, cache, needs_logits, req_id, *more, patch, stock):
    """Choose a prompt's first token, from its row if it has one."""
    with patch.state.batches.row_as_model(self, req_id, input_ids, cache):
        return stock(self, input_ids, cache, needs_logits, req_id, *more)


@PATCH.replaces(f"{RUNNER}._trunk_forward")
def trunk_forward(self, input_ids, cache, *, patch, stock):
    """Compute a prompt up to where its state is kept, or fill in what was computed."""
    first = patch.state.batches.first_part(input_ids, cache)
    if first is None:
        return stock(self, input_ids, cache)
    return first.answer(partial(stock, self), input_ids, cache=cache)
