"""Tracking of mamba states without querying the device for what the host knows."""

from ...model.patch import Marker, Patch, Variant, Worth
from ...model.releases import between
from .gdn_prefill_graph import KERNEL
from .situations import UTILS

SUMMARY = "device-to-host syncs when mamba states are tracked"

_SETS = "sglang_perf_patches.sets.mamba"
_ATTENTION = "sglang.srt.layers.attention"
_HYBRID = f"{_ATTENTION}.hybrid_linear_attn_backend"
_BASE = f"{_HYBRID}:MambaAttnBackendBase"
_GDN = f"{_ATTENTION}.linear.gdn_backend:GDNAttnBackend"
_GDN_OF_059 = f"{_HYBRID}:GDNAttnBackend"
_METADATA = f"{_ATTENTION}.mamba.mamba2_metadata"
_FLASHINFER = f"{_ATTENTION}.linear.kernels.gdn_flashinfer"
_BATCH = "sglang.srt.model_executor.forward_batch_info:ForwardBatch"
_HALVES = "sglang.srt.batch_overlap.two_batch_overlap:TboForwardBatchPreparer"
_SCHEDULE = "sglang.srt.managers.schedule_batch"
_OLD_FLA = f"{_ATTENTION}.fla"
_FLA = "sglang.kernels.ops.attention.fla"

_FORWARD_TARGETS = (f"{_BASE}._forward_metadata", f"{_BASE}._init_track_conv_indices")
_SSM_TARGET = (f"{_BASE}._init_track_ssm_indices",)
_SCHEDULER_TARGETS = (
    f"{_SCHEDULE}:ScheduleBatch.prepare_for_extend",
    f"{_SCHEDULE}:ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend",
)
_LISTS = (
    f"{_BATCH}.init_new",
    f"{_BATCH}.prepare_mlp_sync_batch",
    f"{_BATCH}._pad_inputs_to_size",
    f"{_HALVES}.filter_batch",
)
"""What relates the lists of lengths to the device tensors, and a batch to its halves."""
_LAYERS = (f"{_BASE}._track_mamba_state_extend", f"{_METADATA}:ForwardMetadata")
_ENTRY = (f"{_SCHEDULE}:_MambaRadixCacheV2TrackEntry",)
_OWN_LISTS = (
    f"{_BASE}._has_cpu_prefill_track_metadata",
    f"{_SCHEDULE}:ScheduleBatch.prepare_for_extend",
    f"{_SCHEDULE}:ScheduleBatch.mix_with_running",
    f"{_BATCH}.mamba_track_aligned_lens",
)
"""What fills and keeps the lists that a batch has since 0.5.21."""


def _chunk_targets(fla: str) -> tuple[str, ...]:
    return (f"{fla}.index:prepare_chunk_indices", f"{fla}.index:prepare_chunk_offsets")


def _chunk_depends(fla: str) -> tuple[str, ...]:
    return (f"{fla}.index:prepare_lens", f"{fla}.utils:tensor_cache")


_ZERO_SYNC = Patch(
    id="mamba.zero-sync",
    summary="build a prefill's mamba metadata from the host's lists, without a sync",
    why=(
        "With --mamba-scheduler-strategy extra_buffer, each linear-attention layer of a prefill "
        "queries the device whether any request is tracked, and which: three waits a layer for a "
        "value that is the same in every layer. The scheduler decided it on the host, and up to "
        "which token, and it knows how long each request is. A model with gated-delta-net layers "
        "waits for that too, and to compute the FLA chunk indices from it, even if nothing is "
        "tracked."
    ),
    how=(
        "The scheduler's decision per request travels on the mask tensor that stock makes from it. "
        "Stock's own arithmetic then runs on CPU tensors made from those lists. Its results go to "
        "the device in pinned, non-blocking copies; slots stay on the device. Layers that query "
        "the mask get the answer from the host. Stock's code runs for a batch whose lists are "
        "missing or have another length: data-parallel padding, two-batch overlap, speculative "
        "phases, replayed graphs, decodes. SGLANG_PERF_PATCHES_DEBUG=1 compares the host's lists "
        "with the device on each prefill and raises an error that shows both if they differ. From "
        "0.5.11 on stock queries a prefill once a forward and not once a layer. There this patch "
        "had variants too, and gained 1 or 2 % at best; they are retired."
    ),
    gain=(
        "Servers of 0.5.9 to 0.5.10.post1 that track states get their first token 6 to 13 % "
        "sooner. Time per token is stock's. One H200, in turns in one Engine:"
    ),
    figures=(
        ("measured", "stock", "patched"),
        ("time to the first token of 519 tokens, 0.5.10.post1", "60.7 ms", "57.7 ms"),
        ("the same of 8 x 512 tokens", "68.0 ms", "61.2 ms"),
        ("the same of 4 x 2048 tokens", "107.8 ms", "94.2 ms"),
        ("the same of 8,000 tokens", "180.7 ms", "169.0 ms"),
        ("time of a forward, 4 requests of 1k tokens, 0.5.10.post1", "1", "0.69"),
        ("the same, 0.5.9", "1", "0.85"),
        ("syncs of a prefill of 36 layers, 0.5.9", "122", "0"),
        ("the same, 0.5.10.post1", "120", "0"),
    ),
    worth=Worth(
        "c",
        "sgl-project/sglang#20522",
    ),
    condition=(
        "Prefills that the host's launches limit: short prompts and small batches. A prefill of "
        "32k tokens gains 3 to 4 %. A decode step that replays a graph or runs without one is "
        "stock's own."
    ),
    upstream=("sgl-project/sglang#20522",),
    upstream_note="it queries the device once a forward; this patch, not at all",
    built_in_since="0.5.11",
    markers=(Marker(definition=f"{_METADATA}:ForwardMetadata", contains="has_mamba_track_mask"),),
    variants=tuple(
        Variant(
            releases=releases,
            install=f"{_SETS}.zero_sync:install",
            awaits=(UTILS,),
            targets=(
                *_SCHEDULER_TARGETS,
                *_SSM_TARGET,
                *_FORWARD_TARGETS,
                *_chunk_targets(_OLD_FLA),
            ),
            depends=(*_LISTS, *_LAYERS, *_chunk_depends(_OLD_FLA), f"{gdn}.forward_extend"),
        )
        for releases, gdn in (
            (("0.5.9",), _GDN_OF_059),
            (between("0.5.10", "0.5.10.post1"), _GDN),
        )
    ),
)

_LIGHTNING = f"{_ATTENTION}.linear.lightning_backend:LightningAttentionBackend"
_LIGHTNING_TARGETS = (f"{_LIGHTNING}.forward_extend", f"{_LIGHTNING}._prefill_and_mix_infer")
_TRACK_STORE = f"{_LIGHTNING}._prepare_seg_la_track_store"
_LIGHTNING_DEPENDS = (
    *_LISTS,
    f"{_LIGHTNING}.init_forward_metadata",
    f"{_ATTENTION}.linear.linear_metadata:BailingLinearMetadata",
)

_LIGHTNING_ROWS = Patch(
    id="mamba.lightning-rows",
    summary="select the tracked rows of a lightning-attention prefill on the host, once a forward",
    why=(
        "Each lightning-attention layer of a prefill selects the tracked rows by a mask on the "
        "device, and waits for it. From 0.5.17 on it waits once a layer with the seg_la kernel and "
        "twice with the minimax kernel; from 0.5.13 to 0.5.16 twice with either. The minimax "
        "kernel's layers also cut the batch into requests by device scalars: six or seven waits a "
        "request."
    ),
    how=(
        "The patch uses the scheduler's own lists, which travel on the mask tensor up to 0.5.20. "
        "The mask becomes row numbers and the cuts become CPU scalars. Stock's own plan of the "
        "states that seg_la stores is made once a forward on the CPU. With minimax one wait a "
        "forward remains, to learn the slots of the states, which no list on the host has. A batch "
        "that also decodes keeps one wait a request in each layer. Stock's code runs for a batch "
        "that the host does not know."
    ),
    gain=(
        "Nothing was measured end to end. Forwards of 2 layers on one H200, half of their requests "
        "tracked, with the variants that mamba.zero-sync had for these releases; what those saved "
        "is in the figures too:"
    ),
    figures=(
        ("measured", "stock", "patched"),
        ("syncs with seg_la, 0.5.14", "14", "0"),
        ("syncs with minimax, 0.5.14", "64", "1"),
        ("time with minimax, 0.5.23", "5.0 ms", "4.1 ms"),
        ("time with seg_la, 0.5.23", "1.55 ms", "1.45 ms"),
    ),
    worth=Worth(
        "in doubt",
        "only forwards of 2 layers were shown to gain; no Engine was run",
    ),
    condition="Prefills of a model with lightning attention, and tracking on.",
    absent_because="this release has no lightning-attention backend of this kind",
    anchors=_LIGHTNING_TARGETS,
    variants=(
        Variant(
            releases=between("0.5.10", "0.5.12.post1"),
            install=f"{_SETS}.lightning_rows:install_for_minimax",
            awaits=(UTILS,),
            targets=_LIGHTNING_TARGETS,
            depends=_LIGHTNING_DEPENDS,
        ),
        Variant(
            releases=between("0.5.13", "0.5.16"),
            install=f"{_SETS}.lightning_rows:install",
            awaits=(UTILS,),
            targets=(*_SCHEDULER_TARGETS, *_LIGHTNING_TARGETS),
            depends=(*_ENTRY, *_LIGHTNING_DEPENDS),
        ),
        Variant(
            releases=between("0.5.17", "0.5.20"),
            install=f"{_SETS}.lightning_rows:install_with_track_store",
            awaits=(UTILS,),
            targets=(*_SCHEDULER_TARGETS, *_LIGHTNING_TARGETS, _TRACK_STORE),
            depends=(*_ENTRY, *_LIGHTNING_DEPENDS),
        ),
        Variant(
            releases=between("0.5.21", "0.5.23"),
            install=f"{_SETS}.lightning_rows:install_on_own_lists",
            awaits=(UTILS,),
            targets=(*_LIGHTNING_TARGETS, _TRACK_STORE),
            depends=(*_OWN_LISTS, *_LIGHTNING_DEPENDS),
        ),
    ),
)

_CHUNK_INDICES = Patch(
    id="mamba.mamba2-chunk-indices",
    summary="compute Mamba2's logical chunks on the host, without a sync",
    why=(
        "A Mamba2 prefill queries the device whether any request has a cached prefix. If one has, "
        "stock computes the logical chunks by a loop over device scalars: 1 wait, and 5(B - 1) + 2 "
        "more for B requests."
    ),
    how=(
        "The chunks follow from the lengths alone, and the host has those. They go to the device "
        "in one pinned, non-blocking copy. Stock looks for prefixes in a CPU tensor made from the "
        "host's list. 0.5.14 queries the track mask as well; if the host does not know it, that "
        "one query stays. Stock's code runs for a batch whose list of lengths is missing or does "
        "not add up to its tokens, and for a single request while the device is idle."
    ),
    gain=("Nothing was measured end to end. One H200, 0.5.23, every request with a cached prefix:"),
    figures=(
        ("metadata of a prefill", "stock", "patched"),
        ("time, 64 requests", "11.6 ms", "0.29 ms"),
        ("time, 16 requests", "2.6 ms", "0.23 ms"),
        ("time, 1 request, idle device", "0.19 ms", "stock's code runs"),
        ("waits, 64 requests", "318", "0"),
        ("waits, 16 requests", "78", "0"),
        ("waits, 2 requests", "8", "0"),
    ),
    worth=Worth(
        "in doubt",
        "only a prefill's metadata was shown to gain; no Engine was run",
    ),
    condition=(
        "Mamba2 models. The gain is largest with a prefix hit, or in a later chunk of a chunked "
        "prefill."
    ),
    variants=tuple(
        Variant(
            releases=releases,
            install=f"{_SETS}.chunk_indices:{install}",
            awaits=(UTILS,),
            targets=(
                f"{_METADATA}:Mamba2Metadata.prepare_mixed",
                f"{_METADATA}:Mamba2Metadata._query_start_loc_to_chunk_indices_offsets",
            ),
            depends=_LISTS,
        )
        for releases, install in (
            (between("0.5.9", "0.5.13.post1"), "install"),
            (("0.5.14",), "install_masked"),
            (between("0.5.15", "0.5.23"), "install"),
        )
    ),
)

_HYBRID_BACKEND = f"{_HYBRID}:HybridLinearAttnBackend"
_RADIX = "sglang.srt.layers.radix_linear_attention"
_RUNNER = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner"
_POOL = "sglang.srt.mem_cache.memory_pool:HybridReqToTokenPool"
_CONV = "sglang.kernels.ops.mamba.causal_conv1d_triton"
_BACKENDS = "sglang.srt.model_executor.runner_backend"
_GRAPHS = f"{_BACKENDS}.breakable_cuda_graph_backend:BreakableCudaGraphBackend"
_LOADS = "sglang.srt.managers.cache_controller:LayerDoneCounter"
_UTILS_COMMON = "sglang.srt.utils.common"

_PREFILL_GRAPH = Patch(
    id="mamba.gdn-prefill-graph",
    summary="capture gated-delta-net layers in the breakable prefill graph",
    why=(
        "The breakable prefill graph, the default of recent releases, breaks at each "
        "gated-delta-net layer. Python then launches that layer's kernels one by one, and a short "
        "prefill leaves the GPU idle for most of its time."
    ),
    how=(
        "Stock captures KDA layers since 0.5.22; the patch does the same for gated delta nets. The "
        "layer's own code is captured on tables of a fixed size, one set for each token bucket of "
        "up to 2048 tokens; larger buckets are stock's, because they gain little and take most of "
        "the memory. Before each replay the tables are filled from the host's lists, with one "
        "pinned copy and no wait. With a hierarchical cache a replay comes after the loads of all "
        "layers' states, for which stock's eager layers wait one by one; stock's captured KDA has "
        "the same fault that this patch had, and does not wait. The kernels' grids span "
        "64 requests, or SGLANG_KDA_PREFILL_GRAPH_MAX_SEQS if that is less; unused rows write "
        "nothing. Two small kernels of the patch copy tracked states. Where a bucket can get more "
        "requests, or so few tokens that stock picks another tile, stock's graph is captured too, "
        "and such a batch replays that. Stock's breaks remain with FlashInfer's prefill, whose "
        "algorithm depends on the batch, and with data-parallel attention, experts that gather a "
        "batch, context parallelism, two-batch overlap, multi-item scoring or the unified memory "
        "pool. SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND turns it off. While a model runner is left "
        "that may replay what was captured, the patch can't be taken off."
    ),
    gain=(
        "Short prompts of a small model get their first token in about half the time; with the "
        "dimensions of Qwen3.5-35B-A3B it takes 0.85 (0.72 to 1.01). Others that keep the GPU busy "
        "gain nothing. One H200, a model of 24 layers, in turns in one Engine; tokens and states "
        "were the same on both releases:"
    ),
    figures=(
        ("measured", "stock", "patched"),
        ("time to the first token of 519 tokens, 0.5.23", "27.8 ms", "14.9 ms"),
        ("the same, 0.5.22", "27.3 ms", "13.7 ms"),
        ("graph launches of that prefill, on either", "25", "7"),
        (
            "time to the first token of 8 x 512, 4 x 2048 and 1 x 8000 tokens, on either",
            "",
            "no difference beyond the spread",
        ),
        ("GPU memory after the boot, 0.5.23", "73,392 MiB", "73,496 MiB"),
        ("boot, two a side", "73, 79 s", "88, 92 s"),
    ),
    worth=Worth(
        "a",
        "the first token of 519 tokens, Triton's GDN prefill, takes 0.53",
        "tests/mamba/gpu/results.md",
        "| 27.8 (27.0, 28.6) | 14.9 (14.7, 15.1) | 0.53 (0.53-0.55) |",
    ),
    condition=(
        "Prefills of up to 2048 tokens, with Triton's gated-delta-net kernels and breakable "
        "prefill graphs. A server with FlashInfer's kernels gains nothing, and long prefills gain "
        "nothing."
    ),
    absent_because="this release can't capture a linear layer in the prefill graph",
    anchors=(f"{_BASE}.supports_prefill_graph_extend",),
    variants=(
        Variant(
            releases=between("0.5.22", "0.5.23"),
            install=f"{_SETS}.gdn_prefill_graph:install",
            awaits=(UTILS,),
            targets=(
                f"{_GDN}.forward_extend",
                f"{_BASE}._track_mamba_state_extend",
                *_chunk_targets(_FLA),
                f"{_HYBRID_BACKEND}.__init__",
                f"{_RUNNER}.capture_one_shape",
            ),
            adds=tuple(
                f"{_GDN}.{name}"
                for name in (
                    "supports_prefill_graph_extend",
                    "prefill_graph_extend_active",
                    "init_prefill_graph_metadata",
                    "refresh_prefill_graph_metadata",
                    "prefill_graph_max_seqs",
                )
            ),
            depends=(
                f"{_HYBRID_BACKEND}.linear_extend_in_graph",
                f"{_HYBRID_BACKEND}.init_forward_metadata_for_breakable_cuda_graph_capture",
                f"{_HYBRID_BACKEND}.prepare_forward_metadata_for_breakable_cuda_graph_replay",
                f"{_RADIX}:RadixLinearAttention.forward",
                f"{_RADIX}:_linear_attention_with_output_impl",
                f"{_RADIX}:_linear_extend_in_graph",
                f"{_RUNNER}.capture_prepare",
                f"{_RUNNER}.load_batch",
                f"{_RUNNER}.can_replay_locally",
                f"{_RUNNER}._init_forward_metadata_for_capture",
                f"{_RUNNER}._prepare_forward_metadata_for_replay",
                f"{_RUNNER}._shape_key",
                f"{_GRAPHS}.capture_one",
                f"{_GRAPHS}.replay",
                f"{_BASE}.supports_prefill_graph_extend",
                f"{_BASE}.prefill_graph_extend_active",
                f"{_BASE}.init_prefill_graph_metadata",
                f"{_BASE}.refresh_prefill_graph_metadata",
                f"{_BASE}._forward_metadata",
                f"{_BASE}._has_cpu_prefill_track_metadata",
                f"{_BASE}._init_track_conv_indices",
                f"{_BASE}._init_track_ssm_indices_from_cpu",
                f"{_GDN}.__init__",
                f"{_GDN}.init_forward_metadata",
                f"{_GDN}._init_prefill_conv_block_table",
                f"{_GDN}._init_target_verify_qkv_routing",
                f"{_GDN}._convolve_prefill",
                f"{_GDN}._prefill_gates",
                f"{_METADATA}:ForwardMetadata",
                f"{_ATTENTION}.mamba.prefill_track_metadata:build_prefill_track_plan",
                f"{_BATCH}.mamba_track_aligned_lens",
                f"{_POOL}.mamba2_layer_index",
                f"{_POOL}.mamba2_layer_cache",
                f"{_LOADS}.wait_until",
                f"{_UTILS_COMMON}:require_mlp_sync",
                f"{_ATTENTION}.linear.kernels.gdn_triton:TritonGDNKernel.extend",
                f"{_ATTENTION}.mamba.causal_conv1d:causal_conv1d_fn",
                f"{_CONV}:causal_conv1d_fn",
                f"{_CONV}:_causal_conv1d_fwd_kernel",
                f"{_FLA}.chunk:chunk_gated_delta_rule",
                f"{_FLA}.chunk:chunk_gated_delta_rule_fwd",
                f"{_FLA}.chunk:ChunkGatedDeltaRuleFunction.forward",
                f"{_FLA}.chunk_fwd:chunk_gated_delta_rule_fwd_intra",
                f"{_FLA}.chunk_fwd:chunk_gated_delta_rule_fwd_kkt_solve_kernel",
                f"{_FLA}.chunk_delta_h:chunk_gated_delta_rule_fwd_h",
                f"{_FLA}.chunk_delta_h:chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
                f"{_FLA}.chunk_o:chunk_fwd_o",
                f"{_FLA}.chunk_o:chunk_fwd_kernel_o",
                f"{_FLA}.cumsum:chunk_local_cumsum_scalar",
                f"{_FLA}.cumsum:chunk_local_cumsum_scalar_kernel",
                f"{_FLA}.wy_fast:recompute_w_u_fwd",
                f"{_FLA}.wy_fast:recompute_w_u_fwd_kernel",
                *_chunk_depends(_FLA),
            ),
        ),
    ),
)

_PREFILL_GRAPH_TRITON = Patch(
    id="mamba.gdn-prefill-graph-triton",
    kind="policy",
    summary="run short captured prefills with Triton's kernels on a FlashInfer server",
    why=(
        "On Hopper GPUs recent releases run a gated delta net's prefill with FlashInfer's kernel "
        "if CuTe DSL is installed. That kernel is the faster one for long prefills. But it picks "
        "its algorithm by the batch, so it is not captured, and a short prefill waits for "
        "launches."
    ),
    how=(
        "mamba.gdn-prefill-graph captures Triton's kernel in buckets of up to 2048 tokens. Longer "
        "prefills, and those without a graph, stay with FlashInfer's. The two kernels round "
        "differently, as they do on servers that are started with one or the other. So tokens may "
        "differ from stock's, and the patch is opt-in."
    ),
    gain=(
        "Short prompts of a FlashInfer server get their first token in about half the time. "
        "Prompts that keep the GPU busy gain nothing. One H200, 0.5.23 with its defaults, a model "
        "of 24 layers, in turns in one Engine:"
    ),
    figures=(
        ("measured", "stock", "patched"),
        (
            "time to the first token of 519 tokens, with quartiles",
            "42.2 ms (27.2 to 43.2)",
            "15.5 ms (14.3 to 16.7)",
        ),
        ("the same, median of the turns' ratios", "1", "0.44"),
        ("graph launches of that prefill", "25", "7"),
        (
            "time to the first token of 8 x 512, 4 x 2048 and 1 x 8000 tokens",
            "",
            "no difference beyond the spread",
        ),
        ("prompts of 200 whose first four tokens are stock's", "", "140"),
    ),
    condition="Short prefills on a server whose gated-delta-net prefill is FlashInfer's.",
    absent_because="this release can't capture a linear layer in the prefill graph",
    anchors=(f"{_BASE}.supports_prefill_graph_extend",),
    requires=("mamba.gdn-prefill-graph",),
    variants=(
        Variant(
            releases=between("0.5.22", "0.5.23"),
            install=f"{_SETS}.gdn_prefill_graph_triton:install",
            awaits=(UTILS,),
            targets=(),
            adds=(f"{_GDN}.{KERNEL}",),
            depends=(
                f"{_BASE}.supports_prefill_graph_extend",
                f"{_GDN}.__init__",
                f"{_FLASHINFER}:FlashInferGDNKernel.extend",
                f"{_ATTENTION}.linear.kernels.gdn_triton:TritonGDNKernel.extend",
            ),
        ),
    ),
)

PATCHES = (
    _PREFILL_GRAPH,
    _PREFILL_GRAPH_TRITON,
    _ZERO_SYNC,
    _CHUNK_INDICES,
    _LIGHTNING_ROWS,
)
