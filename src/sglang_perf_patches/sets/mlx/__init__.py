"""Batched decode on Apple's MLX."""

from ...model import releases
from ...model.patch import Marker, Patch, Variant

SUMMARY = "copies of the whole KV at every step of a batched decode on MLX"

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
_RUNNER = f"{_MLX}.model_runner:MlxModelRunner"
_ARENA_TARGETS = (
    _CORE,
    f"{_WRAPPER}:MLXAttentionWrapper._batched_decode",
    f"{_RUNNER}._release_cache",
)
# What hands the caches of a request round, beyond those.
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
# What writes into the pool and reads from it, and what is waited for in between.
_POOL_TARGETS = (
    f"{_RUNNER}.prefill_finalize",
    f"{_RUNNER}.extend_finalize",
    f"{_RUNNER}._sync_decode_kv_to_pool",
)
_POOL_DEPENDS = (
    f"{_RUNNER}._sync_new_kv_to_pool",
    f"{_RUNNER}.prefill_start",
    f"{_RUNNER}.extend_start",
)
# What makes, reuses and releases the caches of a request.
_BUFFER_DEPENDS = (
    f"{_RUNNER}._acquire_cache",
    f"{_RUNNER}.remove_request",
    f"{_RUNNER}.prefill_start",
)

_TURN_TARGETS = (
    f"{_RUNNER}.remove_request",
    f"{_RUNNER}._release_cache",
    f"{_RUNNER}._acquire_cache",
    f"{_RUNNER}.prefill_start",
    f"{_RUNNER}.clear",
)
_TURN_DEPENDS = (
    f"{_RUNNER}._sync_new_kv_to_pool",
    f"{_RUNNER}._sync_decode_kv_to_pool",
    f"{_RUNNER}.prefill_finalize",
)

PATCHES: tuple[Patch, ...] = (
    Patch(
        id="mlx.pool-write",
        summary="what a request leaves to the radix cache's pool is a copy of its tokens",
        why=(
            "What a prefill or a decode leaves to the radix cache is written into the pool by "
            "and by: the queued write refers to the request's whole buffers until somebody "
            "reads the pool. So a finished request keeps two buffers of 4096 tokens per layer. "
            "And MLX updates in place only what nothing else refers to: it copies all buffers "
            "at the first step after a prefill, and at each further chunk of a prompt."
        ),
        how=(
            "The write is queued as in stock. But the tokens are copied out of the request's "
            "buffers while the host waits for the prefill's token, and written into the pool "
            "while it waits for the next chunk, or when the request ends; nothing waits for "
            "that. While a prefill reads the pool, the copy alone is made, because MLX would "
            "copy the pool to write into it: the next write or read takes the queued one along."
        ),
        gain=(
            "With the radix cache on, as sglang's default is, memory and the first token after "
            "a prompt; one request at a time gains as much as many. On a CPU with a small model "
            "(8 layers, 4 KV heads of 64, float32), 0.5.23: 24 requests, one after the other, "
            "keep 67 MB instead of 3221, 16 in batches of four 268 instead of 2147. The first "
            "step after a prefill takes 1.3 of a later one instead of 4.5, in a batch of four "
            "1.1 instead of 6.2. Later steps cost what they cost in stock."
        ),
        condition=(
            "The radix cache; with --disable-radix-cache, and for models with a sliding window, "
            "stock has no pool and there is nothing to gain. The pool is in memory from the "
            "first request on, and not from the first prefix hit on."
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
                    *_POOL_TARGETS,
                ),
                depends=(
                    *_POOL_DEPENDS,
                    f"{_POOL}.set_kv",
                    f"{_POOL}.clear",
                    f"{_MLX}.kv_cache.contiguous_cache:PoolBackedCache",
                ),
            ),
            Variant(
                releases=releases.between("0.5.13", "0.5.23"),
                install=f"{_HERE}.pool_write:install_attention",
                targets=(
                    f"{_ATTENTION_POOL}.set_kv_all_layers",
                    f"{_ATTENTION_POOL}.get_kv",
                    *_POOL_TARGETS,
                ),
                depends=(
                    *_POOL_DEPENDS,
                    f"{_ATTENTION_POOL}.set_kv",
                    f"{_ATTENTION_POOL}.clear",
                    f"{_MLX}.kv_cache.attention_kv_cache:PoolBackedAttentionKVCache",
                    f"{_RUNNER}._cache_with_pool_backed_attention",
                ),
            ),
        ),
    ),
    Patch(
        id="mlx.first-buffer",
        summary="a request's buffers begin with room for what it has, not for 4096 tokens",
        why=(
            "A request's first write makes buffers of 4096 tokens in each layer and fills them "
            "with zeros, whatever the prompt's length. A finished request's buffers wait for "
            "the next one at the size that they have grown to."
        ),
        how=(
            "The first buffers have room for the prompt and a token more, in steps of 256, as "
            "mlx-lm's own have; those of a prompt that comes in chunks for the next chunk too, "
            "and a decode doubles them as in stock. A finished request's caches keep their "
            "dtype, which can decide what the next request is computed in, and no buffers."
        ),
        gain=(
            "Memory, for short requests: on a CPU with a small model (8 layers, 4 KV heads of "
            "64, float32), 0.5.23, 8 requests of 100 to 163 tokens hold 34 MB instead of 537. "
            "Time: the zeros are not written, and a buffer is copied where it doubles; no gain "
            "in speed was measured beyond that. With mlx.pool-write and mlx.kv-arena, 16 "
            "requests in batches of four take 33 MB at the peak, where stock takes 2150, and "
            "keep nothing."
        ),
        condition=(
            "Requests of fewer than 4096 tokens, the shorter the more. A prompt of more than "
            "4096 tokens has buffers of its length instead of the next power of two."
        ),
        anchors=(f"{_WRAPPER}:MLXAttentionWrapper._batched_decode",),
        absent_because="a request's buffers grow by 256 tokens here, as mlx-lm's own do",
        variants=(
            Variant(
                releases=releases.between("0.5.11", "0.5.12.post1"),
                install=f"{_HERE}.first_buffer:install_contiguous",
                targets=(
                    f"{_CONTIGUOUS_CACHE}._allocate",
                    f"{_CONTIGUOUS_CACHE}._grow",
                    f"{_CONTIGUOUS_CACHE}.write_token",
                    f"{_RUNNER}._release_cache",
                    f"{_RUNNER}.clear",
                ),
                depends=(*_BUFFER_DEPENDS, f"{_CONTIGUOUS_CACHE}.update_and_fetch"),
                note="a batched decode also goes on past the end of a buffer",
            ),
            Variant(
                releases=releases.between("0.5.13", "0.5.14"),
                install=f"{_HERE}.first_buffer:install_attention_without_growth",
                targets=(
                    f"{_ATTENTION_CACHE}._allocate",
                    f"{_ATTENTION_CACHE}._grow",
                    f"{_ATTENTION_CACHE}.write_token",
                    f"{_RUNNER}._release_cache",
                    f"{_RUNNER}._cache_arrays",
                ),
                depends=(
                    *_BUFFER_DEPENDS,
                    f"{_ATTENTION_CACHE}.update_and_fetch",
                    f"{_RUNNER}._materialize_pool_backed_attention",
                    f"{_RUNNER}.clear",
                ),
                note="a batched decode also goes on past the end of a buffer",
            ),
            Variant(
                releases=releases.between("0.5.15", "0.5.23"),
                install=f"{_HERE}.first_buffer:install_attention",
                targets=(
                    f"{_ATTENTION_CACHE}._allocate",
                    f"{_ATTENTION_CACHE}._grow",
                    f"{_RUNNER}._release_cache",
                    f"{_RUNNER}._cache_arrays",
                ),
                depends=(
                    *_BUFFER_DEPENDS,
                    f"{_ATTENTION_CACHE}.update_and_fetch",
                    f"{_ATTENTION_CACHE}.write_token",
                    f"{_RUNNER}._materialize_pool_backed_attention",
                    f"{_RUNNER}.clear",
                ),
            ),
        ),
    ),
    Patch(
        id="mlx.last-row",
        summary="prefill asks the model's head for the last position alone",
        why=(
            "A prefill computes the logits of every position of the prompt, or of its last "
            "chunk, and uses those of the last one: nothing else of them is ever read, logprobs "
            "of prompts included, which stock's MLX backend does not give. With a large "
            "vocabulary that is a quarter of a small model's time, and the largest array in the "
            "process."
        ),
        how=(
            "Stock's function runs, and calls the model. For that call the model's trunk "
            "answers with its last position, so its head computes one row. On a CPU whose BLAS "
            "multiplies a row alone as among others, which two small products show, the bits "
            "are the same; MLX's wheels for Linux bring such a one. On a GPU, or with OpenBLAS, "
            "one row is multiplied by another kernel: there the first prompt of each size, by "
            "powers of two, is computed both ways, and the head is given one row, 32 or 256, as "
            "many as give stock's bits; where none does, and in float32, the model is left to "
            "stock, named in one line of the log. So is a model without a trunk of that name."
        ),
        gain=(
            "Time to the first token and memory of a prompt, where the device is busy computing "
            "and not the host launching. Of Qwen3-0.6B's multiplications in a prefill the "
            "head's are 26 %, and its logits of 4096 tokens in bfloat16 are 1.2 GB; both are "
            "saved but for a few rows. With Qwen3-0.6B's proportions on a CPU a prompt of 128 "
            "tokens took 0.71 of stock's time and one of 2048, most of it attention, 0.9. On "
            "one H200, where launching is what takes time, a prompt of 256 tokens took 0.90 and "
            "one of 2048 1.11, with an earlier mlx.pool-write, which wrote into the pool there. "
            "In 860 products on a CPU, of float32, bfloat16, float16, 4 and 8 bits and of 2 to "
            "513 tokens, the last row's bits were those of stock."
        ),
        condition=(
            "Prompts of many tokens, most where the vocabulary is large beside the model. A "
            "decode step and a prompt of one token are as in stock. From 0.5.18 on stock itself "
            "leaves the head out of all chunks but the last."
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
                note="of every chunk of a prompt",
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
                    "of a prompt's last chunk: stock itself asks nothing of the head for the "
                    "others, where the model's trunk can be called alone"
                ),
            ),
        ),
    ),
    Patch(
        id="mlx.decode-context",
        summary=(
            "for one unreleased commit alone, and without gain: arrays of the sequence lengths "
            "are made once per decode step"
        ),
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
        id="mlx.kv-arena",
        summary="a batch's KV stays in one buffer per layer across decode steps",
        why=(
            "Each attention layer of a batched decode pads K and V of each shorter request with "
            "zeros and concatenates those of all requests, at every step: it copies the whole "
            "KV once or twice to append one token to each request. Each request also keeps a "
            "buffer of at least 4096 tokens per layer."
        ),
        how=(
            "K and V of a batch lie in one buffer each per layer, right-padded as stock pads, "
            "which outlives the step; a request is a row. A step writes one token per row and "
            "attends to the filled part. Stock's own method runs: it is given the batch's K and "
            "V where it would pad and concatenate. The requests' cache objects stay stock's and "
            "answer from their row; anything but a batched decode takes the row back into a "
            "buffer of its own first. Buffers are rebuilt when a batch of two steps or more "
            "changes, grow by a sixteenth at least 64 tokens ahead, and go when the requests "
            "go. A batch that changes again after a single step is left to stock, each row in a "
            "buffer of its own, until one comes twice. Also left to stock: a batch of one; the "
            "first step of requests of which no two were decoded together before; layers with a "
            "sliding window, which share their padding as with mlx.step-mask; batches whose "
            "padded rows would take more than twice the memory of stock's buffers; the fused "
            "RoPE kernel (SGLANG_MLX_USE_CUSTOM_ROPE). On a device where nobody has proven it, "
            "as on Metal, the first steps of a process are taken both ways: the requests have "
            "stock's values, each layer's result is compared bit by bit, and arenas serve equal "
            "lengths, or unequal ones, after eight such steps were equal. One that is not "
            "leaves everything to stock, and the log says so in one line."
        ),
        gain=(
            "On one H200 (MLX 0.32.4 for CUDA 13, Qwen3-0.6B's shape in bfloat16), radix cache "
            "off, time of a decode step, patched : stock, for equal and for unequal lengths: on "
            "0.5.23 with 16 requests of up to 254 and 1024 tokens 0.34 to 0.35 and 0.23 to 0.24 "
            "where a step is built before the one before it is read, 0.41 to 0.48 and 0.26 to "
            "0.32 where not, of up to 4000 0.44 to 0.47 and 0.40 to 0.43; with 8 of up to 254 "
            "0.52 to 0.60 and 0.38 to 0.43, with 4 0.72 to 0.78 and 0.60 to 0.62, with 2 0.85 "
            "to 0.90 and 0.76 to 0.80; with 16 of up to 254 and 1024 on 0.5.11 and 0.5.17 0.35 "
            "to 0.47 and 0.23 to 0.32. On slower hosts 16 requests had 0.26 to 0.38 and 0.19 to "
            "0.28. Building a step's graph takes about a third of the time with 16 requests. "
            "The logits were equal, bit by bit, with MLX's cuDNN attention off; with it on, all "
            "but those of 16 requests of equal lengths that cross 256 tokens, where stock's own "
            "differ from run to run. With the radix cache on, all patches of the set, on a busy "
            "host: with 16 requests of up to 256 and 1024 tokens 0.32 to 0.37 for equal and "
            "0.18 to 0.20 for skewed lengths, on 0.5.23 and 0.5.11; with one of 6000 tokens and "
            "three of 100 0.55."
        ),
        condition=(
            "Batched decode, the more the more requests; most with unequal lengths. A step in "
            "which requests join or leave copies the KV once, as stock does at each step. Where "
            "every step is one, stock's own steps are taken after the second: no slower than "
            "stock (on an H200 0.68 to 1.00 in turns of six steps), but on CUDA a gain is given "
            "up, for 16 requests whose buffers were built anew in every step had 0.41 to 0.45 "
            "there. On a CPU that cost up to 1.19 of stock's time. Where batches last one step "
            "and two in turn, copies come on top of stock's. Not measured on Metal."
        ),
        anchors=(f"{_WRAPPER}:MLXAttentionWrapper._batched_decode",),
        absent_because="MLX has no batched decode context here: it came with #22416, in 0.5.11",
        requires=("mlx.pool-write",),
        variants=(
            Variant(
                releases=releases.between("0.5.11", "0.5.12.post1"),
                install=f"{_HERE}.kv_arena:install_contiguous",
                targets=(*_ARENA_TARGETS, f"{_RUNNER}.clear"),
                depends=(*_ARENA_DEPENDS, f"{_RUNNER}._cache_state_arrays", _CONTIGUOUS_CACHE),
                note="every layer is served; a batched decode also goes on past 4096 tokens",
            ),
            Variant(
                releases=releases.between("0.5.13", "0.5.17"),
                install=f"{_HERE}.kv_arena:install_attention",
                targets=_ARENA_TARGETS,
                depends=(*_ARENA_DEPENDS_2, _ATTENTION_CACHE),
                note=(
                    "every attention layer is served, gated ones and those of hybrid models too; "
                    "with the fused RoPE kernel all are left to stock"
                ),
            ),
            Variant(
                releases=releases.between("0.5.18", "0.5.23"),
                install=f"{_HERE}.kv_arena:install_attention",
                targets=_ARENA_TARGETS,
                depends=(*_ARENA_DEPENDS_2, _ATTENTION_CACHE),
                note=(
                    "every attention layer without a window is served, those with sinks or gates "
                    "and those of hybrid models too; layers with a sliding window stay with stock, "
                    "and with the fused RoPE kernel all do"
                ),
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
        summary="the merged cache of a batch lives across decode steps",
        why=(
            "A batched decode merges the caches of its requests, layer by layer, into one with the "
            "shorter ones padded, and takes it apart again after one token: the whole KV is copied "
            "twice at every step, and the host waits for each request's padding."
        ),
        how=(
            "The merged cache is kept. What stock puts into a request's place when it takes the "
            "batch apart is a row of it, cut out only when something else than the next step of "
            "the same requests in the same order uses it: another batch, a decode of one request, "
            "more prompt. A step that fails is taken back. Layers with a sliding window make the "
            "batch stay with stock."
        ),
        gain=(
            "On one H200 (MLX 0.32.4 for CUDA 13, Qwen3-0.6B's shape in bfloat16), time of a "
            "decode step, patched : stock, for equal and for unequal lengths: with 16 requests of "
            "up to 254 tokens 0.29, of 1024 0.31 to 0.32, of 4000 0.34 and 0.37; with 8 of up to "
            "254 and 1024 0.39 to 0.42, with 4 0.54 to 0.58, with 2 0.61 to 0.65. The logits were "
            "equal, bit by bit."
        ),
        condition=(
            "Batched decode of the same requests over several steps; a step in which requests join "
            "or leave merges as stock does, and where every step is one there is little to gain "
            "(on an H200 0.83 to 0.97 of stock's time with 2 requests, 1.01 to 1.05 with 16, of "
            "which the quartiles are 0.77 to 1.10). Not measured on Metal."
        ),
        absent_because="no caches are merged here: only 0.5.10, the first release with MLX, does",
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
    Patch(
        id="mlx.merged-state",
        summary="a hybrid model's recurrent state stays merged from step to step",
        why=(
            "A batched decode of a hybrid model (Qwen3-Next, Qwen3.5) concatenates the "
            "requests' recurrent states in each recurrent layer at every step, and cuts the "
            "result up again after it."
        ),
        how=(
            "The merged state is kept. What stock puts into a request's cache when it splits is "
            "a row of it, cut out only when something else than the next step of the same "
            "requests in the same order uses it: another batch, a snapshot for the radix cache, "
            "more prompt. A step that fails in a layer is taken back there."
        ),
        gain=(
            "Nothing measured in time. The graph of a decode step of the tests' Qwen3-Next (4 "
            "layers, 2 of them recurrent) has 831 nodes instead of 859 with 6 requests, and 783 "
            "instead of 795 with 2: the concatenations and slices of the states are gone, and "
            "with them a copy of the state at every step."
        ),
        condition=(
            "Batched decode of the same requests over several steps. A step in which requests "
            "join or leave merges and splits as stock does."
        ),
        absent_because="MLX batches no recurrent layers here: it came with 0.5.13",
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
        kind="policy",
        summary="a finished request's caches wait for the next turn of its conversation",
        why=(
            "The next turn of a conversation begins with all that the turn before was computed "
            "from. Where the radix cache has it, stock gathers it from the pool, concatenates "
            "it with the new tokens in each layer, and copies it into a buffer. With a sliding "
            "window there is no pool, and stock prefills the whole conversation again, at each "
            "turn."
        ),
        how=(
            "The caches of up to 16 finished requests, of 2 GiB together, are kept; the longest "
            "unused go first, and all go when stock clears its caches. A prompt that begins "
            "with what they hold is given them, cut back to where it goes on, and runs from "
            "there; its new tokens go into the pool as ever. Where the radix cache has the same "
            "tokens, give or take 64, the same tokens run as in stock and the logits are the "
            "same."
        ),
        gain=(
            "Time to the first token from the second turn on, and with a sliding window the "
            "more the longer the conversation, for there stock prefills all of it again. On 2 "
            "busy CPU cores with the tests' small model and full attention, 500 new tokens a "
            "turn: a ratio to stock of 0.43 to 1.16, median 0.76, over turns 2 to 8. They are "
            "single times, so little more than a sign; with a window nothing was measured."
        ),
        condition=(
            "Conversations and other prompts that go on where a finished one ended, one request "
            "at a time for each. It is a policy because KV of a window is that of decode, where "
            "stock's is that of one long prefill: close, not equal. Models with a recurrent "
            "state are left to stock. The memory comes on top of the pool's."
        ),
        anchors=(f"{_WRAPPER}:MLXAttentionWrapper._batched_decode",),
        absent_because="MLX has no radix cache here, and every turn is a new prompt",
        variants=(
            Variant(
                releases=releases.between("0.5.11", "0.5.12.post1"),
                install=f"{_HERE}.next_turn:install",
                targets=_TURN_TARGETS,
                depends=(*_TURN_DEPENDS, _CONTIGUOUS_CACHE),
            ),
            Variant(
                releases=releases.between("0.5.13", "0.5.17"),
                install=f"{_HERE}.next_turn:install",
                targets=_TURN_TARGETS,
                depends=(*_TURN_DEPENDS, _ATTENTION_CACHE),
                note="models with a recurrent state are left to stock",
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
                    "again; models with a recurrent state are left to stock"
                ),
            ),
        ),
    ),
)
