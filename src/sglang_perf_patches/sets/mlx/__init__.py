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
    f"{_RUNNER}.decode_batch_start_chained",
)
# Beyond those, everything that passes a request's caches on.
_ARENA_DEPENDS = (
    *_USERS,
    f"{_RUNNER}._acquire_cache",
    f"{_RUNNER}.decode_batch",
    f"{_RUNNER}.decode_batch_start",
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
            "a",
            "4 prompts at once leave a server on a CPU with 3173 MB, not 5755 MB",
            "tests/mlx/memory.md",
            "server-at-once",
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
        worth=Worth(
            "a",
            "a token of 16 clients, unique prompts, takes a server 32.2 and 38.0 ms, not 78.2 ms",
            "tests/mlx/served.md",
            "served-unique-16",
        ),
        anchors=(f"{_WRAPPER}:MLXAttentionWrapper._batched_decode",),
        absent_because=("MLX has no batched decode context here: it came with #22416, in 0.5.11"),
        requires=("mlx.pool-write",),
        variants=(
            Variant(
                releases=releases.between("0.5.11", "0.5.12.post1"),
                install=f"{_HERE}.kv_arena:install_contiguous",
                targets=(*_ARENA_TARGETS, f"{_CONTIGUOUS_CACHE}.write_token"),
                depends=(
                    *_ARENA_DEPENDS,
                    f"{_RUNNER}._cache_state_arrays",
                    f"{_RUNNER}.clear",
                    _CONTIGUOUS_CACHE,
                ),
                note="for every layer; a batched decode also goes on past a buffer's end",
            ),
            Variant(
                releases=releases.between("0.5.13", "0.5.14"),
                install=f"{_HERE}.kv_arena:install_attention_without_growth",
                targets=(*_ARENA_TARGETS, f"{_ATTENTION_CACHE}.write_token"),
                depends=(*_ARENA_DEPENDS_2, _ATTENTION_CACHE),
                note=(
                    "as on 0.5.15; a batched decode also goes on past a buffer's end, as stock "
                    "does itself from 0.5.15 on"
                ),
            ),
            Variant(
                releases=releases.between("0.5.15", "0.5.17"),
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
