"""``swa.prefill-graph``: attention inside the breakable prefill graph, for one request.

Stock's graph breaks at each attention layer, whose Python then launches its kernels. Here each
bucket has a second graph without these breaks. Stock's own code of the layer is captured, on
tensors at fixed addresses (`inputs`). Which batches it computes as stock does follows from what
FlashAttention chooses on the host (`inputs`, too). All other batches replay stock's graph.

What the Python of a layer does besides launching kernels:

| dropped by the capture | at a replay |
| --- | --- |
| the pool waits until the layer's KV is loaded from the host | waits for all layers, before |
| input and output are cut to the batch's tokens | all rows of the bucket; see `_captured` |
| ``out_cache_loc`` is narrowed | rows of no token write slot 0, which stock keeps for that |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from ....model.patching import Patching
from . import ATTENTION, BREAKABLE, PATCH, RADIX, RUNNER

LONGEST = 512
"""Tokens up to which a bucket has a second graph. Of longer prompts the GPU works longer than the
host needs to launch the layers."""
_STATE = "_sglang_perf_patches_attention"
"""On a runner: its `_State`, or None if it stays stock's."""
_SHARED: WeakSet[Any] = WeakSet()
"""Runners of several ranks that may replay what they captured. A captured all-reduce may read its
peers' memory of the same graph, so no rank may go back to stock's graphs by itself."""
_ARGUMENTS = {"sinks"}
"""What the captured layers may be called with beyond queries, keys, values and output."""


@dataclass
class _State:
    """What a runner captures and replays with."""

    key: str  # what its ranks have announced
    layers: list[Any]  # its RadixAttentions
    inputs: Any  # what the captured layers read


@dataclass(eq=False)
class Either:
    """The graphs of a bucket; if `is_ours`, the next replay is of the one with the layers."""

    stocks: Any
    ours: Any
    inputs: Any  # what the captured layers read
    tokens: int  # of the bucket
    choices: Any  # of the capture
    held: Any  # graphs keep addresses, not what is there
    is_ours: bool = False

    def replay(self) -> None:
        """Replay the chosen one, once."""
        ours, self.is_ours = self.is_ours, False
        (self.ours if ours else self.stocks).replay()

    def prepare(self, backend: Any, forward_batch: Any) -> None:
        """Choose a graph for a batch, for which stock has just made its metadata."""
        from ...graphs import wait_for_loads

        tokens = _tokens(forward_batch)
        if not tokens:
            return
        pool = backend.token_to_kv_pool
        length = tokens + int(forward_batch.extend_prefix_lens_cpu[0])
        if self.inputs.choices(tokens, length) != self.choices:
            return
        self.inputs.fill(backend.forward_metadata, tokens, self.tokens)
        wait_for_loads(pool.layer_transfer_counter, pool.get_kv_buffer, [*self.inputs.kinds])
        self.is_ours = True


@PATCH.setup()
def setup(patch):
    waits_for = "no model runner of several ranks is left that may replay what it captured"
    patch.drain(lambda: not len(_SHARED), waits_for)


@PATCH.replaces(f"{RUNNER}.capture_one_shape")
def capture_one_shape(self, size, *, patch, stock, **kwargs):
    """Capture a bucket once more."""
    if not hasattr(self, _STATE):
        setattr(self, _STATE, _state(patch, self))
    stock(self, size, **kwargs)
    state = getattr(self, _STATE)
    if state is None or not 1 < size <= LONGEST:
        return
    reason = _capture_again(patch, self, state, size, lambda: stock(self, size, **kwargs))
    if reason:
        patch.gate(reason)
        setattr(self, _STATE, None)
        _SHARED.discard(self)


@PATCH.replaces(f"{RUNNER}._prepare_forward_metadata_for_replay")
def prepare(self, forward_batch, static, shape_key, *, patch, stock):
    """Choose a graph before each replay."""
    ends = stock(self, forward_batch, static, shape_key)
    either = self.backend._graphs.get(shape_key) if hasattr(self, _STATE) else None
    if type(either) is Either:
        either.prepare(self.model_runner.attn_backend, forward_batch)
        patch.ran.seen = patch.ran.seen or either.is_ours
    return ends


def _capture_again(
    patch: Patching, runner: Any, state: _State, size: int, capture: Any
) -> str | None:
    """Add a second graph; returns why the runner stays stock's, None if it needn't."""
    from ...graphs import agree, may_have_further, without_warm_up

    if not agree(state.key, runner.backend._tp_group.ranks):
        return "a rank of this server runs stock's code here"
    if not may_have_further(runner, size):
        return None
    graphs, held = runner.backend._graphs, runner.backend._capture_inputs
    (key,) = (key for key in graphs if key.size == size)
    stocks, kept = graphs[key], held[key]
    choices = state.inputs.choices(size, size)
    backend = runner.model_runner.attn_backend
    capturing = patch.module(BREAKABLE)._current_capture_var
    with without_warm_up(runner, capturing, state), _captured(backend, state, size) as others:
        capture()
    if others:
        graphs[key], held[key] = stocks, kept
        return f"the model asks attention for more: {', '.join(sorted(others))}"
    graphs[key] = Either(stocks, graphs[key], state.inputs, size, choices, kept)
    return None


@contextmanager
def _captured(backend: Any, state: _State, tokens: int) -> Iterator[set[str]]:
    """Within, a capture has the layers in the graph; yields the arguments that no test has.

    A replay computes rows of no token too. They come last, so no other row attends to them, and
    their output is set to zero, as stock leaves it.
    """
    inputs, splits = state.inputs, backend.num_splits
    choices, unused = inputs.choices(tokens, tokens), inputs.unused[:tokens]
    made: list[Any] = []
    others: set[str] = set()

    def in_graph(layer: Any) -> Any:
        run = type(layer)._eager_attention.run_eager

        def attention(q: Any, k: Any, v: Any, output: Any, *rest: Any, **more: Any) -> None:
            # Neither `verify` nor the comparison at boot tests what these return.
            others.update({*more} - _ARGUMENTS)
            if not made:
                made.append(inputs.metadata(backend.forward_metadata, tokens))
            backend.forward_metadata = made[0]
            backend.num_splits = choices[inputs.kinds[layer.layer_id]].splits
            run(layer, q, k, v, output, *rest, **more)
            output.masked_fill_(unused.view(-1, *(1,) * (output.dim() - 1)), 0)

        return attention

    try:
        for layer in state.layers:
            layer._eager_attention = in_graph(layer)
        yield others
    finally:
        backend.num_splits = splits
        for layer in state.layers:
            vars(layer).pop("_eager_attention", None)


def _tokens(forward_batch: Any) -> int:
    """The new tokens of a batch of one request that a second graph may compute; else 0."""
    lens = forward_batch.extend_seq_lens_cpu
    if lens is None or len(lens) != 1 or forward_batch.forward_mode.name != "EXTEND":
        return 0
    plain = (
        forward_batch.global_num_token_non_padded_cpu == lens[0]
        and forward_batch.multi_item_delimiter_indices is None
        and forward_batch.encoder_lens is None
        and forward_batch.dcp_kv_mask is None
        and not forward_batch.mha_return_lse
    )
    return int(lens[0]) if plain and lens[0] > 1 else 0


# -- at boot --------------------------------------------------------------------------------------


def _state(patch: Patching, runner: Any) -> _State | None:
    """What a PrefillCudaGraphRunner captures with; None if its graphs stay stock's."""
    from ...graphs import announce
    from .inputs import Inputs, Kind

    if runner.model_runner.is_draft_worker:
        return None  # its target model may still be captured
    backend = runner.model_runner.attn_backend
    radix = patch.get(RADIX)
    layers = [each for each in runner.layer_model.modules() if isinstance(each, radix)]
    reason = unserved(patch.module, runner, layers)
    if reason is not None:
        patch.gate(reason)
        return None
    kinds = {
        each.layer_id: Kind(
            max(each.sliding_window_size, -1),
            *(each.tp_q_head_num, each.tp_k_head_num, each.head_dim, each.v_head_dim),
        )
        for each in layers
    }
    buckets = sorted(size for size in runner.capture_num_tokens if 1 < size <= LONGEST)
    inputs = Inputs(backend, buckets[-1], kinds)
    attention = patch.module(f"{ATTENTION}.flashattention_backend").flash_attn_with_kvcache
    like = backend.req_to_token.new_empty(0, dtype=backend.kv_cache_dtype)
    if not inputs.agree(attention, buckets, like):
        patch.gate("FlashAttention chooses in another way than the one tested")
        return None
    if len(runner.backend._tp_group.ranks) > 1:
        _SHARED.add(runner)
    same = (LONGEST, inputs.units, inputs.page, sorted(map(str, kinds.items())))
    return _State(announce(PATCH.id, same), layers, inputs)


def unserved(modules: Any, runner: Any, layers: list[Any]) -> str | None:
    """Why a runner's attention stays as stock runs it; None if it can be captured."""
    backend = runner.model_runner.attn_backend
    flash = modules(f"{ATTENTION}.flashattention_backend").FlashAttentionBackend
    if type(backend) is not flash or backend.fa_impl_ver != 3:
        return f"{type(backend).__name__} was not captured in any proof"
    if type(runner.backend).__name__ != "BreakableCudaGraphBackend" or runner.backend._debug_eager:
        return "prefills run without breakable CUDA graphs"
    if backend.use_mla or backend.is_encoder_decoder or backend.local_attn_builder is not None:
        return "the model has another kind of attention"
    if (
        backend.kv_index_translator.is_translating
        or backend._kv_shard_pool is not None
        or backend.fa_skip_kv_cache
        or backend.attn_cp_size != 1
        or runner.enable_cp_bcg_capture
    ):
        return "the KV pool is of another kind"
    if backend.kv_cache_dtype.itemsize != 2 or backend.kv_cache_is_mxfp8:
        return "KV is quantised (--kv-cache-dtype)"
    if not layers or not any(1 < size <= LONGEST for size in runner.capture_num_tokens):
        return f"no prefill graph has up to {LONGEST} tokens"
    if not all(
        each.attn_type.value == "decoder"
        and not (each.is_cross_attention or each.use_irope)
        and each.use_prefill_attention_wrapper
        for each in layers
    ):
        return "a layer attends in another way"
    return None
