"""Batched decode on Apple's MLX."""

from ...model import releases
from ...model.patch import Marker, Patch, Variant, Worth
from .proven import PROVEN

SUMMARY = "copies of the whole KV at every step of a batched decode on MLX"

_HERE = __name__
_MLX = "sglang.srt.hardware_backend.mlx"
_WRAPPER = f"{_MLX}.kv_cache.attention_wrapper"
_CORE = f"{_WRAPPER}:mx"
_CONTIGUOUS_CACHE = f"{_MLX}.kv_cache.contiguous_cache:ContiguousKVCache"
_ATTENTION_CACHE = f"{_MLX}.kv_cache.attention_kv_cache:ContiguousAttentionKVCache"
# Everything in the module that uses mlx.core through the name that the patches change.
_USERS = (
    f"{_WRAPPER}:MLXAttentionWrapper",
    f"{_WRAPPER}:BatchedDecodeContext",
    f"{_WRAPPER}:get_context",
)
_BEFORE_23470 = ("git-5b9fbc51dcff",)
_RUNNER = f"{_MLX}.model_runner:MlxModelRunner"
_ARENA_TARGETS = (
    _CORE,
    f"{_WRAPPER}:MLXAttentionWrapper._batched_decode",
    f"{_RUNNER}._release_cache",
)
# Beyond those, everything that passes a request's caches on.
_ARENA_DEPENDS = (
    *_USERS,
    f"{_RUNNER}._acquire_cache",
    f"{_RUNNER}.decode_batch",
    f"{_RUNNER}.decode_batch_start",
    f"{_RUNNER}.decode_batch_start_chained",
    f"{_RUNNER}.prefill_start",
    f"{_RUNNER}.extend_start",
    f"{_RUNNER}._sync_new_kv_to_pool",
    f"{_RUNNER}._sync_decode_kv_to_pool",
    f"{_RUNNER}.remove_request",
)
# From 0.5.13 on.
_ARENA_DEPENDS_2 = (
    *_ARENA_DEPENDS,
    f"{_RUNNER}._decode_with_batched_attention",
    f"{_RUNNER}._decode_with_hybrid_batching",
    f"{_RUNNER}._build_batched_decode_context",
    f"{_RUNNER}._materialize_pool_backed_attention",
    f"{_RUNNER}._cache_arrays",
    f"{_RUNNER}.clear",
)

_POOL = f"{_MLX}.kv_cache.kv_pool:MlxKVPool"
_ATTENTION_POOL = f"{_MLX}.kv_cache.attention_kv_pool:MlxAttentionKVPool"
# The pool's writers and readers, and what stock waits for in between.
_POOL_TARGETS = (
    f"{_RUNNER}.prefill_finalize",
    f"{_RUNNER}.extend_finalize",
    f"{_RUNNER}._sync_new_kv_to_pool",
    f"{_RUNNER}._sync_decode_kv_to_pool",
)
_POOL_DEPENDS = (
    f"{_RUNNER}.prefill_start",
    f"{_RUNNER}.extend_start",
)
# Creates, reuses and releases the caches of a request.
_BUFFER_DEPENDS = (
    f"{_RUNNER}._acquire_cache",
    f"{_RUNNER}.remove_request",
)

_TURN_TARGETS = (
    f"{_RUNNER}.remove_request",
    f"{_RUNNER}._release_cache",
    f"{_RUNNER}._acquire_cache",
    f"{_RUNNER}.prefill_start",
)
_TURN_DEPENDS = (
    f"{_RUNNER}.clear",
    f"{_RUNNER}._sync_new_kv_to_pool",
    f"{_RUNNER}._sync_decode_kv_to_pool",
    f"{_RUNNER}.prefill_finalize",
)

PATCHES: tuple[Patch, ...] = (
    Patch(
        id="mlx.pool-write",
        proven_with=PROVEN["mlx.pool-write"],
        summary=(
            "the radix cache's pool gets a copy of a request's tokens, and keeps no buffers alive"
        ),
        worth=Worth(
            "a",
            "a prompt of 2,048 tokens on one H200 takes 0.93 with this patch alone",
            "tests/mlx/gpu/results.md",
            "prompt-2048-pool-write",
        ),
        anchors=(f"{_WRAPPER}:MLXAttentionWrapper._batched_decode",),
        absent_because="there is no pool here: MLX has had a radix cache since 0.5.11",
        variants=(
            Variant(
                releases=releases.between("0.5.11", "0.5.12.post1"),
                install=f"{_HERE}.pool_write:install_contiguous",
                targets=(
                    f"{_POOL}.set_kv_all_layers",
                    f"{_POOL}.get_kv",
                    f"{_POOL}.clear",
                    *_POOL_TARGETS,
                ),
                depends=(
                    *_POOL_DEPENDS,
                    f"{_POOL}.set_kv",
                    f"{_MLX}.kv_cache.contiguous_cache:PoolBackedCache",
                ),
            ),
            Variant(
                releases=releases.between("0.5.13", "0.5.23"),
                install=f"{_HERE}.pool_write:install_attention",
                targets=(
                    f"{_ATTENTION_POOL}.set_kv_all_layers",
                    f"{_ATTENTION_POOL}.get_kv",
                    f"{_ATTENTION_POOL}.clear",
                    *_POOL_TARGETS,
                ),
                depends=(
                    *_POOL_DEPENDS,
                    f"{_ATTENTION_POOL}.set_kv",
                    f"{_MLX}.kv_cache.attention_kv_cache:PoolBackedAttentionKVCache",
                    f"{_RUNNER}._cache_with_pool_backed_attention",
                ),
            ),
        ),
    ),
    Patch(
        id="mlx.first-buffer",
        proven_with=PROVEN["mlx.first-buffer"],
        summary=("a request's buffers start with room for its prompt, not for 4096 tokens"),
        worth=Worth(
            "in doubt",
            "its memory was shown of a runner on a CPU, not of a server; gated on CUDA by default",
        ),
        anchors=(f"{_WRAPPER}:MLXAttentionWrapper._batched_decode",),
        absent_because="a request's buffers grow by 256 tokens here, as mlx-lm's own do",
        variants=(
            Variant(
                releases=releases.between("0.5.11", "0.5.12.post1"),
                install=f"{_HERE}.first_buffer:install_contiguous",
                targets=(
                    f"{_CONTIGUOUS_CACHE}.update_and_fetch",
                    f"{_CONTIGUOUS_CACHE}._allocate",
                    f"{_CONTIGUOUS_CACHE}._grow",
                    f"{_CONTIGUOUS_CACHE}.write_token",
                    f"{_RUNNER}._release_cache",
                    f"{_RUNNER}.prefill_start",
                ),
                depends=(*_BUFFER_DEPENDS, f"{_RUNNER}.clear"),
                note="a batched decode also goes on past the end of a buffer",
            ),
            Variant(
                releases=releases.between("0.5.13", "0.5.14"),
                install=f"{_HERE}.first_buffer:install_attention_without_growth",
                targets=(
                    f"{_ATTENTION_CACHE}.update_and_fetch",
                    f"{_ATTENTION_CACHE}._allocate",
                    f"{_ATTENTION_CACHE}._grow",
                    f"{_ATTENTION_CACHE}.write_token",
                    f"{_RUNNER}._release_cache",
                    f"{_RUNNER}.prefill_start",
                    f"{_RUNNER}._cache_arrays",
                ),
                depends=(
                    *_BUFFER_DEPENDS,
                    f"{_RUNNER}._materialize_pool_backed_attention",
                    f"{_RUNNER}.clear",
                ),
                note="a batched decode also goes on past the end of a buffer",
            ),
            Variant(
                releases=releases.between("0.5.15", "0.5.23"),
                install=f"{_HERE}.first_buffer:install_attention",
                targets=(
                    f"{_ATTENTION_CACHE}.update_and_fetch",
                    f"{_ATTENTION_CACHE}._allocate",
                    f"{_ATTENTION_CACHE}._grow",
                    f"{_RUNNER}._release_cache",
                    f"{_RUNNER}._cache_arrays",
                ),
                depends=(
                    *_BUFFER_DEPENDS,
                    f"{_RUNNER}.prefill_start",
                    f"{_ATTENTION_CACHE}.write_token",
                    f"{_RUNNER}._materialize_pool_backed_attention",
                    f"{_RUNNER}.clear",
                ),
            ),
        ),
    ),
    Patch(
        id="mlx.last-row",
        proven_with=PROVEN["mlx.last-row"],
        summary="prefill runs the model's head for the last position only",
        worth=Worth(
            "a",
            "a prompt of 2,048 tokens on one H200 takes 0.96 with this patch alone",
            "tests/mlx/gpu/results.md",
            "prompt-2048-last-row",
        ),
        absent_because="MLX came with 0.5.10",
        variants=(
            Variant(
                releases=releases.between("0.5.10", "0.5.10.post1"),
                install=f"{_HERE}.last_row:install_eager",
                targets=(f"{_RUNNER}.prefill",),
                depends=(f"{_RUNNER}._extract_logits",),
            ),
            Variant(
                releases=releases.between("0.5.11", "0.5.17"),
                install=f"{_HERE}.last_row:install_lazy",
                targets=(f"{_RUNNER}.prefill_start", f"{_RUNNER}.extend_start"),
                depends=(f"{_RUNNER}._extract_logits",),
                note="for every chunk of a prompt",
            ),
            Variant(
                releases=releases.between("0.5.18", "0.5.23"),
                install=f"{_HERE}.last_row:install_lazy",
                targets=(f"{_RUNNER}.prefill_start", f"{_RUNNER}.extend_start"),
                depends=(
                    f"{_RUNNER}._extract_logits",
                    f"{_RUNNER}._forward_lazy_token",
                    f"{_RUNNER}._select_tokens_with_logprobs",
                    f"{_RUNNER}._trunk_forward",
                ),
                note=(
                    "for a prompt's last chunk: stock itself skips the head for the others, if "
                    "the model's trunk can be called alone"
                ),
            ),
        ),
    ),
    Patch(
        id="mlx.decode-context",
        proven_with=PROVEN["mlx.decode-context"],
        summary=(
            "for one unreleased commit only, and without gain: arrays of the sequence lengths are "
            "made once per decode step"
        ),
        worth=Worth(
            "c",
            "sgl-project/sglang#23470",
        ),
        upstream=("sgl-project/sglang#23470",),
        built_in_since="0.5.11",
        markers=(
            Marker(
                definition=f"{_WRAPPER}:BatchedDecodeContext.__post_init__",
                contains="self.valid_lens =",
            ),
            Marker(
                definition=f"{_WRAPPER}:MLXAttentionWrapper._batched_decode",
                contains="ctx.offsets",
            ),
        ),
        absent_because="MLX has no batched decode context here: it came with #22416, in 0.5.11",
        variants=(
            Variant(
                releases=_BEFORE_23470,
                install=f"{_HERE}.decode_context:install",
                targets=(_CORE,),
                depends=_USERS,
            ),
        ),
    ),
    Patch(
        id="mlx.kv-arena",
        proven_with=PROVEN["mlx.kv-arena"],
        summary="a batch's KV stays in one buffer per layer across decode steps",
        why=(
            "In each step of a batched decode every attention layer pads K and V of each shorter "
            "request with zeros and concatenates those of all requests. It copies the whole KV "
            "once or twice to append one token to each request. Each request also keeps a buffer "
            "of at least 4096 tokens per layer."
        ),
        how=(
            "K and V of a batch lie in one buffer each per layer, right-padded as stock pads. The "
            "buffer outlives the step; a request is a row. A step writes one token per row and "
            "attends to the filled part. Stock's own method runs and gets the batch's K and V "
            "where it would pad and concatenate. The requests' cache objects stay stock's and read "
            "from their row. Anything but a batched decode first moves the row back into a buffer "
            "of its own. Buffers are rebuilt when a batch that lasted two steps or more changes. "
            "They grow by a sixteenth, at least 64 tokens ahead, and are freed with the requests. "
            "A batch that changes again after a single step goes to stock's code, each row in a "
            "buffer of its own, until the same batch comes twice. Stock's code also runs for: a "
            "batch of one; the first step of requests of which no two were decoded together "
            "before; layers with a sliding window, which share their padding as with "
            "mlx.step-mask; batches whose padded rows would take more than twice the memory of "
            "stock's buffers; the fused RoPE kernel (SGLANG_MLX_USE_CUSTOM_ROPE). On a device "
            "where nobody has proven it, as on Metal, a process takes its first steps both ways. "
            "The requests get stock's values, and each layer's result is compared bit by bit. "
            "After eight equal steps arenas serve batches of equal lengths; batches of unequal "
            "lengths need eight of their own. If a step differs, stock's code runs for everything, "
            "and one log line says so."
        ),
        gain=(
            "Batched decode on MLX gains, the more the more requests: with 16 a step takes 0.23 to "
            "0.48 of stock's time on one H200, and a single request gains nothing. There a server "
            "with 16 clients sends 1.8 to 2.6 times as many tokens per second. Building a "
            "step's graph takes about a third of the time with 16. The logits were equal, bit by "
            "bit, with MLX's cuDNN attention off. With it on those of batches were equal but for "
            "16 requests of equal lengths that cross 256 tokens, where stock's own differ from run "
            "to run. One H200, MLX 0.32.4 for CUDA 13, Qwen3-0.6B's shape in bfloat16, 0.5.23 with "
            "the radix cache off unless a row says otherwise:"
        ),
        figures=(
            ("time of a decode step, patched : stock", "equal lengths", "unequal lengths"),
            (
                "16 requests of up to 254 and 1024 tokens, steps built ahead",
                "0.34 to 0.35",
                "0.23 to 0.24",
            ),
            ("the same, each step read before the next is built", "0.41 to 0.48", "0.26 to 0.32"),
            ("16 requests of up to 4000 tokens", "0.44 to 0.47", "0.40 to 0.43"),
            ("8 requests of up to 254 tokens", "0.52 to 0.60", "0.38 to 0.43"),
            ("4 requests of up to 254 tokens", "0.72 to 0.78", "0.60 to 0.62"),
            ("2 requests of up to 254 tokens", "0.85 to 0.90", "0.76 to 0.80"),
            (
                "16 requests of up to 254 and 1024 tokens, 0.5.11 and 0.5.17",
                "0.35 to 0.47",
                "0.23 to 0.32",
            ),
            ("16 requests, slower hosts", "0.26 to 0.38", "0.19 to 0.28"),
            ("Radix cache on, all patches of the set",),
            (
                "16 requests of up to 1024 tokens, 0.5.11, 0.5.17 and 0.5.23",
                "0.33 to 0.34",
                "0.20 to 0.22",
            ),
            ("the same, each step read before the next is built, 0.5.23", "0.42", "0.27"),
            ("one request of 6000 tokens and three of 100, the same releases", "", "0.47 to 0.55"),
            ("4 requests of up to 256 tokens, gpt-oss' shape, 0.5.23", "0.94", "0.86"),
            ("Every step another batch",),
            (
                "H200, turns of six steps, stock's own steps after the second",
                "0.84 to 1.00",
                "0.68 to 1.00",
            ),
            (
                "H200, 16 requests, buffers built anew in every step (given up)",
                "0.45",
                "0.41",
            ),
            ("CPU, buffers built anew in every step (given up)", "up to 1.19", ""),
        ),
        worth=Worth(
            "a",
            "a token of 16 clients takes a server 18.9 and 18.6 ms, not 60.5 ms",
            "tests/mlx/served.md",
            "served-prefix-16",
        ),
        condition=(
            "Batched decode, the more the more requests; most with unequal lengths. A step in "
            "which requests join or leave copies the KV once, as stock does at each step. If every "
            "step is one of those, the patch takes stock's own steps after the second. That makes "
            "it no slower than stock, but gives up a gain on CUDA; on a CPU rebuilding the buffers "
            "in every step cost time. If batches last one step and two in turn, copies come on top "
            "of stock's. MLX for CUDA compiles kernels at first use, stock's as ours: once a "
            "machine, the second step of the first batch took 4 seconds. Not measured on Metal."
        ),
        anchors=(f"{_WRAPPER}:MLXAttentionWrapper._batched_decode",),
        absent_because=("MLX has no batched decode context here: it came with #22416, in 0.5.11"),
        requires=("mlx.pool-write",),
        variants=(
            Variant(
                releases=releases.between("0.5.11", "0.5.12.post1"),
                install=f"{_HERE}.kv_arena:install_contiguous",
                targets=_ARENA_TARGETS,
                depends=(
                    *_ARENA_DEPENDS,
                    f"{_RUNNER}._cache_state_arrays",
                    f"{_RUNNER}.clear",
                    _CONTIGUOUS_CACHE,
                ),
                note="for every layer; a batched decode also goes on past 4096 tokens",
            ),
            Variant(
                releases=releases.between("0.5.13", "0.5.17"),
                install=f"{_HERE}.kv_arena:install_attention",
                targets=_ARENA_TARGETS,
                depends=(*_ARENA_DEPENDS_2, _ATTENTION_CACHE),
                note=(
                    "for every attention layer, also gated ones and those of hybrid models; "
                    "stock's code runs with the fused RoPE kernel"
                ),
            ),
            Variant(
                releases=releases.between("0.5.18", "0.5.23"),
                install=f"{_HERE}.kv_arena:install_attention",
                targets=_ARENA_TARGETS,
                depends=(*_ARENA_DEPENDS_2, _ATTENTION_CACHE),
                note=(
                    "for every attention layer without a window, also with sinks or gates and in "
                    "hybrid models; stock's code runs with a sliding window, and with the fused "
                    "RoPE kernel"
                ),
            ),
        ),
    ),
    Patch(
        id="mlx.step-mask",
        proven_with=PROVEN["mlx.step-mask"],
        summary="padding and mask are made once per decode step and shared by the layers",
        why=(
            "Requests of unequal lengths are padded to the longest. Each attention layer makes the "
            "zeros for K and for V of each shorter request anew. Up to 0.5.17 it makes the "
            "additive mask anew, too. All of these depend on the lengths alone."
        ),
        how=(
            "The attention wrapper's module reaches mlx.core through an object that keeps, on the "
            "step's decode context, one array of zeros per padding shape and one mask per dtype. "
            "All layers, requests of equal length, K and V share them. The arrays are stock's own, "
            "so the logits are the same, bit for bit. Outside a batched decode step nothing is "
            "kept."
        ),
        gain=(
            "Batches of unequal lengths gain a little on a CPU; equal lengths gain nothing. It was "
            "not measured on a GPU or on Metal. A small Qwen3 on 2 CPU cores, lengths of 16 to 256:"
        ),
        figures=(
            ("a decode step; 8 layers, 4 KV heads of 64, float32", "0.5.23", "0.5.11"),
            (
                "CPU time, stock : patched, 16 requests, median (quartiles)",
                "1.06 (1.02, 1.13)",
                "1.10 (1.06, 1.17)",
            ),
            ("CPU time, stock : patched, 4 requests", "1.02", "1.02"),
            ("nodes of the graph, 16 requests", "2806 -> 2356", "2864 -> 2351"),
        ),
        worth=Worth(
            "in doubt",
            "a little on a CPU, for unequal lengths; what mlx.kv-arena falls back to",
        ),
        condition=(
            "Batches of unequal lengths; the more requests are shorter than the longest, the more "
            "they gain. With equal lengths there is no padding and nothing to gain: ratio 1.00."
        ),
        absent_because="MLX has no batched decode context here: it came with #22416, in 0.5.11",
        superseded_by=("mlx.kv-arena",),
        variants=(
            Variant(
                releases=_BEFORE_23470,
                install=f"{_HERE}.step_mask:install",
                targets=(_CORE,),
                depends=(
                    *_USERS,
                    f"{_MLX}.model_runner:MlxModelRunner.decode_batch_start",
                    f"{_MLX}.model_runner:MlxModelRunner.decode_batch_start_chained",
                ),
                note="zero padding and additive mask",
            ),
            Variant(
                releases=releases.between("0.5.11", "0.5.17"),
                install=f"{_HERE}.step_mask:install",
                targets=(_CORE,),
                depends=_USERS,
                note="zero padding and additive mask",
            ),
            Variant(
                releases=releases.between("0.5.18", "0.5.23"),
                install=f"{_HERE}.step_mask:install",
                targets=(_CORE,),
                depends=_USERS,
                note="zero padding; stock keeps the mask itself",
            ),
        ),
    ),
    Patch(
        id="mlx.merged-cache",
        proven_with=PROVEN["mlx.merged-cache"],
        summary="the merged cache of a batch is kept across decode steps",
        worth=Worth(
            "a",
            "a decode step of 4 requests on 0.5.10.post1 takes 0.58 of the time",
            "tests/mlx/gpu/results.md",
            "read-old-4",
        ),
        absent_because=("this release merges no caches: only 0.5.10, the first one with MLX, does"),
        variants=(
            Variant(
                releases=releases.between("0.5.10", "0.5.10.post1"),
                install=f"{_HERE}.merged_cache:install",
                targets=(
                    f"{_MLX}.model_runner:_merge_kv_caches",
                    f"{_MLX}.model_runner:_extract_kv_cache",
                ),
                depends=(_RUNNER, f"{_MLX}.model_runner:MlxRequestState"),
            ),
        ),
    ),
    Patch(
        id="mlx.cache-growth",
        proven_with=PROVEN["mlx.cache-growth"],
        summary="a batched decode goes on past 4096 tokens instead of failing",
        why=(
            "A request's cache has room for 4096 tokens. A prefill and the decode of a single "
            "request let it grow. A batched decode does not, and loses what it writes past the "
            "end. If the lengths differ, a ValueError then ends the step. If they are equal, "
            "nothing is raised and the logits are wrong."
        ),
        how=(
            "Before a token is written to a full cache, stock's own growth doubles the cache. "
            "Stock does so itself from 0.5.15 on."
        ),
        gain=(
            "Correctness, not speed: past the end of a cache the logits are, bit for bit, those of "
            "a release that grows it. Before the end it costs one comparison for each layer and "
            "request."
        ),
        worth=Worth(
            "b",
            "a batched decode past 4096 tokens fails in stock",
        ),
        condition=(
            "A batched decode in which a request's length crosses 4096 tokens, or the size to "
            "which its prefill has grown the cache."
        ),
        built_in_since="0.5.15",
        markers=(Marker(definition=f"{_ATTENTION_CACHE}.write_token", contains="self._grow("),),
        absent_because="MLX has no batched decode context here: it came with #22416, in 0.5.11",
        variants=(
            Variant(
                releases=(*_BEFORE_23470, *releases.between("0.5.11", "0.5.12.post1")),
                install=f"{_HERE}.cache_growth:install_contiguous",
                targets=(f"{_CONTIGUOUS_CACHE}.write_token",),
                depends=(f"{_CONTIGUOUS_CACHE}._grow",),
            ),
            Variant(
                releases=releases.between("0.5.13", "0.5.14"),
                install=f"{_HERE}.cache_growth:install_attention",
                targets=(f"{_ATTENTION_CACHE}.write_token",),
                depends=(f"{_ATTENTION_CACHE}._grow",),
            ),
        ),
    ),
    Patch(
        id="mlx.merged-state",
        proven_with=PROVEN["mlx.merged-state"],
        summary="a hybrid model's recurrent state stays merged from step to step",
        worth=Worth(
            "in doubt",
            "only all patches of the set were timed; alone it was not",
        ),
        absent_because="MLX does not batch recurrent layers here: that came with 0.5.13",
        variants=(
            Variant(
                releases=releases.between("0.5.13", "0.5.23"),
                install=f"{_HERE}.merged_state:install",
                targets=(
                    f"{_RUNNER}._decode_auxiliary_layer",
                    f"{_RUNNER}._merge_auxiliary_caches",
                    f"{_RUNNER}._replace_cache_contents",
                    f"{_RUNNER}._cache_arrays",
                ),
                depends=(
                    f"{_RUNNER}._decode_auxiliary_layer_batched",
                    f"{_RUNNER}._can_batch_auxiliary_layer",
                    f"{_RUNNER}._can_fast_merge_arrays_cache",
                    f"{_RUNNER}._fast_merge_arrays_cache",
                    f"{_RUNNER}._decode_with_hybrid_batching",
                    f"{_RUNNER}._store_auxiliary_state",
                    f"{_MLX}.kv_cache.auxiliary_state:_snapshot_cache",
                    f"{_MLX}.kv_cache.auxiliary_state:_restore_cache",
                ),
                awaits=("mlx_lm.models.cache",),
            ),
        ),
    ),
    Patch(
        id="mlx.next-turn",
        proven_with=PROVEN["mlx.next-turn"],
        kind="policy",
        summary="a finished request's caches wait for the next turn of its conversation",
        anchors=(f"{_WRAPPER}:MLXAttentionWrapper._batched_decode",),
        absent_because="MLX has no radix cache here, and every turn is a new prompt",
        variants=(
            Variant(
                releases=releases.between("0.5.11", "0.5.12.post1"),
                install=f"{_HERE}.next_turn:install_contiguous",
                targets=_TURN_TARGETS,
                depends=(*_TURN_DEPENDS, _CONTIGUOUS_CACHE),
            ),
            Variant(
                releases=releases.between("0.5.13", "0.5.14"),
                install=f"{_HERE}.next_turn:install_attention_without_growth",
                targets=_TURN_TARGETS,
                depends=(*_TURN_DEPENDS, _ATTENTION_CACHE),
                note="stock's code runs for models with a recurrent state",
            ),
            Variant(
                releases=releases.between("0.5.15", "0.5.17"),
                install=f"{_HERE}.next_turn:install",
                targets=_TURN_TARGETS,
                depends=(*_TURN_DEPENDS, _ATTENTION_CACHE),
                note="stock's code runs for models with a recurrent state",
            ),
            Variant(
                releases=releases.between("0.5.18", "0.5.23"),
                install=f"{_HERE}.next_turn:install",
                targets=_TURN_TARGETS,
                depends=(
                    *_TURN_DEPENDS,
                    _ATTENTION_CACHE,
                    f"{_MLX}.kv_cache.attention_kv_cache:WindowedAttentionKVCache",
                ),
                note=(
                    "also with a sliding window, where stock prefills the whole conversation "
                    "again; stock's code runs for models with a recurrent state"
                ),
            ),
        ),
    ),
)
