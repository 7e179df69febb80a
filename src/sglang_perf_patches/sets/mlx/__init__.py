"""Batched decode on Apple's MLX."""

from ... import releases
from ...patch import Marker, Patch, Variant

SUMMARY = "per-layer rebuilding of what depends only on the sequence lengths, in MLX batched decode"

_HERE = __name__
_MLX = "sglang.srt.hardware_backend.mlx"
_WRAPPER = f"{_MLX}.kv_cache.attention_wrapper"
_CORE = f"{_WRAPPER}:mx"
_CONTIGUOUS_CACHE = f"{_MLX}.kv_cache.contiguous_cache:ContiguousKVCache"
_ATTENTION_CACHE = f"{_MLX}.kv_cache.attention_kv_cache:ContiguousAttentionKVCache"
# Everything in the module that reaches mlx.core by the name that the patches change.
_USERS = (
    f"{_WRAPPER}:MLXAttentionWrapper",
    f"{_WRAPPER}:BatchedDecodeContext",
    f"{_WRAPPER}:get_context",
)
_BEFORE_23470 = ("git-5b9fbc51dcff",)

PATCHES: tuple[Patch, ...] = (
    Patch(
        id="mlx.decode-context",
        summary="arrays of the sequence lengths are made once per decode step",
        why=(
            "Each attention layer of a batched decode makes the lengths before and after the "
            "new token, and the positions up to the longest, as arrays of its own, though all "
            "layers of a step need the same."
        ),
        how=(
            "The attention wrapper's module reaches mlx.core through an object that keeps what "
            "one step makes from lengths, on the step's decode context; the first layer makes "
            "it and the others share it. Padding and mask stay per layer, as upstream left "
            "them: mlx.step-mask is for those."
        ),
        gain=(
            "About none, where its pull request reports 8 %. The upstream change itself, on one "
            "H200 (28 layers, 2 to 16 requests, 128 to 2048 tokens): ratios of 0.92 to 1.09 "
            "around 1.00 in 24 configurations. This patch on the code before it, on 2 CPU cores "
            "(8 layers, 4 and 16 requests): medians of 0.99 to 1.00; of about 2870 nodes in the "
            "graph of a step with unequal lengths it saves 7."
        ),
        condition="Requests of unequal lengths save a few nodes a step; equal lengths, nothing.",
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
        id="mlx.step-mask",
        summary="padding and mask are made once per decode step and shared by the layers",
        why=(
            "Requests of unequal lengths are padded to the longest. Each attention layer makes "
            "the zeros anew for K and for V of each shorter request and, up to 0.5.17, the "
            "additive mask too, though these depend on the lengths alone."
        ),
        how=(
            "The attention wrapper's module reaches mlx.core through an object that keeps, on "
            "the step's decode context, one array of zeros per padding shape and one mask per "
            "dtype; all layers, requests of equal length, K and V share them. The arrays are "
            "stock's own, so are the logits, bit for bit. Outside a batched decode step nothing "
            "is kept."
        ),
        gain=(
            "On 2 CPU cores with a small Qwen3 (8 layers, 4 KV heads of 64 in float32, lengths "
            "from 16 to 256), CPU time of a decode step, stock : patched, median and quartiles: "
            "with 16 requests 1.06 (1.02, 1.13) on 0.5.23 and 1.10 (1.06, 1.17) on 0.5.11, with 4 "
            "requests 1.02 on both. The graph of a step with 16 has 2356 nodes instead of 2806 "
            "on 0.5.23, 2351 instead of 2864 on 0.5.11. Not measured on a GPU or on Metal."
        ),
        condition=(
            "Batches of unequal lengths, the more the more requests are shorter than the longest. "
            "With equal lengths there is no padding and nothing to gain: ratio 1.00."
        ),
        absent_because="MLX has no batched decode context here: it came with #22416, in 0.5.11",
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
        id="mlx.cache-growth",
        summary="a batched decode goes on past 4096 tokens instead of failing",
        why=(
            "A request's cache has room for 4096 tokens. A prefill and the decode of a single "
            "request let it grow; a batched decode does not, and loses what it writes past the "
            "end. Where the lengths differ, a ValueError then ends the step; where they are "
            "equal, nothing is raised and the logits are wrong."
        ),
        how=(
            "Before a token is written to a full cache, stock's own growth doubles it, as stock "
            "does itself from 0.5.15 on."
        ),
        gain=(
            "Correctness, not speed: past the end of a cache the logits are, bit for bit, those "
            "of a release that grows it. Before the end it costs a comparison for each layer and "
            "request."
        ),
        condition=(
            "A batched decode in which a request's length crosses 4096 tokens, or what its "
            "prefill has grown the cache to."
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
)
