"""The features and uses of a server that patches declare, and the rule by which they keep one off.

A plain server uses its release's defaults on one GPU: overlap scheduling, a radix cache, CUDA
graphs, chunked prefill, pages of one token. Anything beyond that is a feature: a patch declares
those that it was proven with (`Patch.proven_with`), and any other gates it. An argument that is
neither here nor in `inert_args` gates patches too, if it differs from its default.

A use is what a patch is for (`Patch.only_with`). On a server that lacks it the patch is not needed;
or gated, if it would have an effect there. What only a running server can tell is no use: there the
patch's own code gates it.

Each row of the tables below has a name, a clause for messages, and conditions on arguments:

    argument            its value is not a usual one (`_USUAL`)
    argument=a,b        its value is one of these
    argument!=a,b       its value is none of these; ``default`` is the release's default
    one,other=a         the same condition on either argument

The value ``usual`` stands for the usual ones. One condition is enough, and all are needed where
``&`` joins them. A feature can be on only ``if`` the condition at its end holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from .feature import NOTHING, UNPROVEN, Feature, Features, Setup, Use, Values
from .patch import Patch

OTHER_GPU = "other-gpu"
"""The one feature that a record of ``verify`` can prove a patch with (`verified`)."""

NO_MLX = (None, False, "0", "false", "no", "n")
"""Values of ``SGLANG_USE_MLX`` with which MLX does not compute, as stock reads them."""

_PLAIN_KV = (None, "auto", "bf16", "bfloat16", "fp16", "float16", "half", "fp32", "float32")
_UNTRACKED = (None, "auto", "no_buffer")
_USUAL: Values = {
    **dict.fromkeys(("tp_size", "dp_size", "ep_size", "pp_size", "nnodes"), (None, 0, 1)),
    **dict.fromkeys(("attn_dp_size", "attn_cp_size", "dcp_size", "dwdp_size"), (None, 0, 1)),
    **dict.fromkeys(("moe_dp_size", "page_size", "speculative_eagle_topk"), (None, 0, 1)),
    "num_continuous_decode_steps": (None, 0, 1),
    "moe_dense_tp_size": (None,),
    "device": (None, "cuda", "cpu", "mps"),
    "gpu.capability": (None, "9.0"),
    "retraction_policy": (None, "length"),
    "disaggregation_decode_allocation_policy": (None, "early"),
    "disaggregation_decode_retraction_backup": (None, "host_pool"),
    **dict.fromkeys(("kv_cache_dtype", "speculative_draft_kv_cache_dtype"), _PLAIN_KV),
    **dict.fromkeys(("mamba_scheduler_strategy", "mamba_radix_cache_strategy"), _UNTRACKED),
    "model_impl": (None, "auto", "sglang"),
    "offload_group_size": (None, -1, 0),
    "swa_full_tokens_ratio": (None, 0.8),
    "gdn.prefill": (None, "triton", "flashinfer"),
    **dict.fromkeys(("SGLANG_USE_MLX", "SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND"), NO_MLX),
}
"""Argument → the values of a plain server; `NOTHING` if it is not here."""

_FEATURES = """
# where it runs
hip | this server runs on AMD GPUs (HIP) | is_hip
npu | this server runs on Ascend NPUs | is_npu
xpu | this server runs on Intel GPUs | is_xpu
musa | this server runs on Moore Threads GPUs (MUSA) | is_musa
hpu | this server runs on Gaudi (HPU) | is_hpu
cpu | this server runs on a CPU with sglang's CPU kernels | is_cpu
other-device | the device is of an unknown kind | device
other-gpu | the GPU is not a Hopper (H100, H200) | gpu.capability if device=cuda
# over how many processes
tensor-parallel | tensor parallelism is on | tp_size
data-parallel | data parallelism is on | dp_size
dp-attention | data-parallel attention is on
    | enable_dp_attention attn_dp_size parallel.attn_dp_enabled
expert-parallel | expert parallelism is on
    | ep_size enable_eplb moe_dp_size dwdp_size moe_dense_tp_size
elastic-ranks | ranks may join or leave the running server | elastic_ep_backend ep_join_mode
expert-all-to-all | experts exchange tokens through an all-to-all backend | moe_a2a_backend
pipeline | pipeline parallelism is on | pp_size
context-parallel | context parallelism is on
    | attn_cp_size dcp_size enable_prefill_cp enable_prefill_context_parallel
    enable_nsa_prefill_context_parallel enable_dsa_prefill_context_parallel enable_cp_decode_attn_tp
    enable_cp_tp_group_sharing enable_kv_cache_sharding enable_dsa_cache_layer_split
    enable_layernorm_sp enable_attn_tp_input_scattered enable_megamoe_for_layernorm_sp
# what a batch is
two-batch-overlap | two-batch overlap is on | enable_two_batch_overlap
one-batch-overlap | one-batch overlap is on | enable_single_batch_overlap
no-overlap | overlap scheduling is off | disable_overlap_schedule
mixed-chunks | prefills are mixed with decodes | enable_mixed_chunk
whole-prefills | prefills are not chunked | chunked_prefill_size=0,-1
dynamic-chunks | dynamic chunk sizes are on | enable_dynamic_chunking
several-steps | the scheduler decodes several steps at once | num_continuous_decode_steps
priorities | requests have priorities | enable_priority_scheduling
other-retraction | another retraction policy is on | retraction_policy
items | multi-item scoring is on | enable_mis multi_item_scoring_delimiter
embeddings | the server computes embeddings | is_embedding
diffusion | the model decodes by diffusion | dllm_algorithm
multimodal | the model takes images or sound | enable_multimodal model.is_multimodal
split-encoder | images are encoded in another server, or left out
    | encoder_only language_only language_model_only
# speculation
eagle | speculation by EAGLE is on | speculative_algorithm=eagle,eagle3,nextn
standalone | speculation by STANDALONE is on | speculative_algorithm=standalone
ngram | speculation by NGRAM is on | speculative_algorithm=ngram
dflash | speculation by DFLASH is on | speculative_algorithm=dflash,dspark,domino,uno
frozen-kv-mtp | speculation by FROZEN_KV_MTP is on | speculative_algorithm=frozen_kv_mtp
other-speculation | speculation of an unknown kind is on
    | speculative_algorithm!=usual,eagle,eagle3,nextn,standalone,ngram,dflash,dspark,domino,uno,
    frozen_kv_mtp
draft-trees | drafts branch into trees | speculative_eagle_topk
adaptive-drafts | adaptive draft lengths are on | speculative_adaptive
layered-drafts | multi-layer EAGLE is on | enable_multi_layer_eagle
other-drafter | drafts come from another server | decoupled_spec_role
draft-windows | the draft model has a sliding window
    | speculative_draft_window_size speculative_dflash_draft_window_size speculative_draft_sink_size
draft-vocabulary | the draft model has a smaller vocabulary | speculative_token_map
# disaggregation
prefill-server | the server is a prefill server | disaggregation_mode=prefill
decode-server | the server is a decode server | disaggregation_mode=decode
other-disaggregation | the server's part in disaggregation is unknown or changes
    | disaggregation_mode!=usual,prefill,decode enable_pd_role_switch enable_pdmux
decode-radix-cache | the decode radix cache is on | disaggregation_decode_enable_radix_cache
decode-offload | decode KV offload is on | disaggregation_decode_enable_offload_kvcache
late-slots | KV is received in host memory, or its slots are allocated late
    | disaggregation_decode_allocation_policy disaggregation_decode_host_receive_threshold!=default
optimistic-prefill | optimistic prefill is on
    | optimistic_prefill_attempts optimistic_prefill_retries
# Only a decode server uses these, though every server resolves their argument.
retracted-in-tensors | retracted KV is kept in tensors, not in a host pool
    | disaggregation_decode_retraction_backup=cpu_tensor if disaggregation_mode=decode
retracted-elsewhere | it is unknown where retracted KV is kept
    | disaggregation_decode_retraction_backup!=usual,cpu_tensor if disaggregation_mode=decode
# the KV cache and other states
hierarchical-cache | the hierarchical cache is on | enable_hierarchical_cache
other-cache | another prefix cache is on
    | enable_lmcache enable_flexkv radix_cache_backend enable_unified_cache_external_linker
sessions | the prefix cache is by session, or leaves out the thinking part
    | enable_streaming_session enable_session_radix_cache strip_thinking_cache
no-radix-cache | the radix cache is off | disable_radix_cache
no-kv-cache | there is no KV cache | prefill_only_disable_kv_cache
pages | a KV page has several tokens | page_size
quantised-kv | the KV cache is quantised | kv_cache_dtype speculative_draft_kv_cache_dtype
unified-memory | the unified memory pool is on | enable_unified_memory
page-major | KV is laid out page by page | enable_page_major_kv_layout
sparse-kv | sparse attention keeps KV on the host
    | enable_hisparse enable_double_sparsity hierarchical_sparse_attention_extra_config
no-window-pool | the sliding-window pool is off | disable_hybrid_swa_memory
window-replay | window KV is recomputed from the prompt
    | enable_encoder_swa_bounded_replay enable_decoder_swa_bounded_replay
tracked-states | states are tracked in extra buffers
    | mamba_scheduler_strategy,mamba_radix_cache_strategy=extra_buffer
other-tracking | states are tracked in another way
    | mamba_scheduler_strategy,mamba_radix_cache_strategy!=usual,extra_buffer
packed-states | states are quantised, rounded stochastically or replayed
    | enable_int8_mamba_checkpoint enable_mamba_cache_stochastic_rounding
    enable_linear_replayssm enable_linear_replayssm_spec enable_gdn_replayssm_spec
# the model
lora | LoRA is on | enable_lora lora_paths uno_lora_path
quantised-weights | weights are quantised by an argument | quantization torchao_config
    rl_quant_profile quantize_and_serve modelopt_quant speculative_draft_model_quantization
other-model-code | the model's code is not sglang's | forward_hooks model_impl
offloading | weights are kept in the host's memory
    | cpu_offload_gb kt_weight_path enable_paged_experts ple_offload_embedding offload_group_size
memory-saver | memory can be released and resumed
    | enable_memory_saver enable_weights_cpu_backup enable_draft_weights_cpu_backup
# how it computes
deterministic | deterministic inference is on | enable_deterministic_inference rl_on_policy_target
no-cuda-graphs | decodes run without CUDA graphs
    | disable_cuda_graph disable_decode_cuda_graph debug_cuda_graph
forced-graphs | breakable or piecewise graphs are forced
    | enable_breakable_cuda_graph enforce_piecewise_cuda_graph
forward-metrics | forward-pass metrics are on | enable_forward_pass_metrics
compiled | the model is compiled by torch | enable_torch_compile
megakernel | a megakernel runs many layers | enable_nvidia_megakernel enable_amd_monokernel
returned-insides | hidden states, experts or indices are returned
    | enable_return_hidden_states return_hidden_states_mode enable_return_aux_hidden_states
    enable_return_routed_experts enable_return_indexer_topk
mlx-sampling | MLX samples the tokens | mlx_enable_sampling
debugging | the server checks or dumps what it computes | kv_canary debug_tensor_dump_output_folder
    msprobe_dump_config enable_nan_detection disaggregation_enable_kv_checksum
"""

_NEEDS = """
mlx | MLX is off (SGLANG_USE_MLX) | SGLANG_USE_MLX
torch | MLX computes the model (SGLANG_USE_MLX) | SGLANG_USE_MLX=usual
speculation | speculation is off | speculative_algorithm decoupled_spec_role
host-drafts | speculation is not NGRAM, which alone has the fault on this release
    | speculative_algorithm=ngram
mla | the model has no MLA | model.has_mla
single-drafts | drafts branch into trees (--speculative-eagle-topk) | speculative_eagle_topk=usual
fa3 | attention does not run on FlashAttention 3
    | attention.prefill,attention.decode,attention.draft=fa3,minicpm_flashattn,minicpm_flashinfer
fa3-prefills | the attention of prefills does not run on FlashAttention 3 | attention.prefill=fa3
# Stock drafts on Triton with that algorithm, whatever else it runs on.
triton | attention does not run on Triton
    | attention.prefill,attention.decode,attention.draft=triton speculative_algorithm=frozen_kv_mtp
triton-only | prefills and decoding do not both run on Triton
    | attention.prefill=triton & attention.decode=triton
frozen-drafts | no draft reads the target's KV (speculation by FROZEN_KV_MTP)
    | speculative_algorithm=frozen_kv_mtp
trtllm-mla | the attention backend of drafts is not TRT-LLM MLA
    | attention.draft=trtllm_mla,cutedsl_mla,tokenspeed_mla
lengths-on-gpu | attention runs neither on Triton nor on TRT-LLM MLA
    | attention.prefill,attention.decode,attention.draft=triton,trtllm_mla,cutedsl_mla,
    tokenspeed_mla
two-backends | prefill and decode have one attention backend | attention.is_split
plain-rotary | multimodal rotary positions need the lengths on the host | model.has_mrope=usual
states | the model has no recurrent states | model.has_states
delta-nets | the model has no gated delta nets | model.has_delta_nets
mamba2 | the model has no Mamba2 layers | model.has_mamba2
lightning | the model has no lightning attention | model.has_lightning
minimax-kernel | the model's lightning attention does not run on the kernel `minimax`
    | model.linear_kernel=minimax
tracked | no states are tracked in extra buffers
    | mamba_scheduler_strategy mamba_radix_cache_strategy
planned-tracks | no states are tracked in extra buffers
    | mamba_scheduler_strategy mamba_radix_cache_strategy model.linear_kernel=minimax
breakable-prefills | prefills run without breakable CUDA graphs | graphs.prefill=breakable
captured-extends | SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND is set
    | SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND=usual
windows | the model has no sliding windows of the usual kind | model.has_windows
no-chunks | the model attends in chunks, as Llama 4 does | model.attends_in_chunks=usual
window-pool | the model has no sliding-window pool of the kind that the patch knows
    | model.has_window_pool
poolless-windows | the model is not Gemma 2 or 3, EXAONE 4 or Olmo 3
    | model.architecture=gemma2forcausallm,gemma3forcausallm,gemma3forconditionalgeneration,
    exaone4forcausallm,olmo2forcausallm
several-requests | one request runs at a time (--max-running-requests 1) | max_running_requests!=1
decode-server | the server is not a decode server
    | disaggregation_mode!=usual,prefill enable_pd_role_switch
prefills | a decode server computes no prompts | disaggregation_mode!=decode enable_pd_role_switch
prefix-cache | the radix cache is off | disable_radix_cache=usual
one-token-pages | a KV page has several tokens | page_size=usual
ranks | the server has one rank | tp_size
one-host | the ranks are on several hosts (--nnodes) | nnodes=usual
own-processes | the ranks are actors of Ray (--use-ray) | use_ray=usual
polling | the processes of an idle server sleep (--sleep-on-idle) | sleep_on_idle=usual
host-cache | the hierarchical cache is off | enable_hierarchical_cache
"""
"""Uses without which a patch is ``not needed``. ``model.…`` is read from the release's own
``ModelConfig``; ``attention.…``, ``graphs.…``, ``gdn.…`` and ``drafts.…`` from several arguments
(`computed`)."""

_GATING = """
drafts-of-one | data parallelism is on with a draft model, which was not tested
    | drafts.replicated=usual
known-gdn-kernel | the prefill kernel of gated delta nets was not tested
    (--linear-attn-prefill-backend, --linear-attn-backend, --mamba-ssm-dtype) | gdn.prefill=usual
known-pool-backend | this --attention-backend was not tested with a window pool of ours
    | attention.prefill=fa3,triton & attention.decode=fa3,triton
one-backend | prefill and decode have different attention backends, which was not tested
    (--prefill-attention-backend, --decode-attention-backend) | attention.is_split=usual
request-limit | --max-running-requests is not given | max_running_requests
stock-window-ratio
    | the operator or the model sizes the sliding-window pool (--swa-full-tokens-ratio)
    | swa_full_tokens_ratio=usual & _swa_full_tokens_ratio_explicitly_set=usual
no-storage | the hierarchical cache has a storage backend, which was not tested
    (--hicache-storage-backend) | hicache_storage_backend=usual enable_hierarchical_cache=usual
known-host-cache | the hierarchical cache has a storage backend, or another write policy, layout or
    backend than the tested one (--hicache-…)
    | hicache_write_policy=write_through & hicache_storage_backend=usual &
    hicache_host_memory_mode=cache & hicache_mem_layout=page_first & hicache_io_backend=kernel
tokens-per-state | SGLANG_PERF_PATCHES_TOKENS_PER_STATE is not given
    | SGLANG_PERF_PATCHES_TOKENS_PER_STATE
"""
"""Uses without which a patch is gated: it would have an effect there, and was not tested."""


def _rows(table: str) -> Iterator[tuple[str, str, str]]:
    """Name, clause and conditions of each row; an indented line continues the row above it."""
    for row in re.split(r"\n(?! )", table.strip()):
        if not row.startswith("#"):
            name, clause, conditions = " ".join(row.split()).split(" | ")
            yield name, clause, conditions


def _read(conditions: str) -> tuple[Values, Values]:
    """`Condition.off` and `Condition.on`."""
    off: dict[str, tuple[Any, ...]] = {}
    on: dict[str, tuple[Any, ...]] = {}
    for each in conditions.replace("&", " ").replace(", ", ",").split():
        names, _, values = (each if "=" in each else f"{each}!=usual").partition("=")
        for name in names.rstrip("!").split(","):
            (off if names.endswith("!") else on)[name] = _values(name, values)
    return off, on


def _values(argument: str, text: str) -> tuple[Any, ...]:
    values: list[Any] = []
    for word in text.split(","):
        if word == "usual":
            values += _USUAL.get(argument, NOTHING)
        else:
            values.append(int(word) if word.lstrip("-").isdecimal() else word)
    return tuple(values)


def _feature(name: str, clause: str, conditions: str) -> Feature:
    conditions, _, needed = conditions.partition(" if ")
    changed = re.findall(r"(\S+)!=default", conditions)
    off, on = _read(re.sub(r"\S+!=default", "", conditions))
    _, only = _read(needed)
    return Feature(name=name, clause=clause, off=off, on=on, changed=tuple(changed), only=only)


def _use(name: str, lacking: str, conditions: str) -> Use:
    off, on = _read(conditions)
    return Use(name=name, lacking=lacking, off=off, on=on, every="&" in conditions)


FEATURES = Features(
    [_feature(*row) for row in _rows(_FEATURES)],
    [_use(*row) for table in (_NEEDS, _GATING) for row in _rows(table)],
)
"""All known features and uses."""

_GATES = frozenset(name for name, _, _ in _rows(_GATING))

Ruling = tuple[Literal["not needed", "gated"], str]
"""A state (`state.State`), and why."""


def ruling(
    patch: Patch,
    needed: Iterable[Patch],
    setup: Setup,
    lacking_record: Callable[[Patch], str | None],
) -> Ruling | None:
    """Why a patch does not go live on a server; None if it may, unless its own code gates it.

    A running server asks after each publication of its arguments (`live.registry`), ``doctor --
    COMMAND`` before a boot. That a patch is ``not needed`` comes first, because then a feature that
    nobody tested makes no difference.

    Args:
        patch: its declaration.
        needed: the patches that it requires and that apply on this server's release.
        setup: the server's features and uses.
        lacking_record: None if a record proves a patch on this GPU, which lifts `OTHER_GPU` and
            nothing else; otherwise what to add to the reason.
    """
    lacking = [
        (use, _whose(each, patch) + setup.lacking[use])
        for each in (patch, *needed)
        for use in each.only_with
        if use in setup.lacking
    ]
    for use, why in lacking:
        if use not in _GATES:
            return "not needed", why
    for _, why in lacking:
        return "gated", why
    for each in (patch, *needed):
        for name, clause in setup.on.items():
            if each.proven_with is not None and name not in each.proven_with:
                more = lacking_record(each) if name == OTHER_GPU else ""
                if more is not None:
                    return "gated", _whose(each, patch) + clause + UNPROVEN + more
    return None


def _whose(each: Patch, patch: Patch) -> str:
    return "" if each is patch else f"it needs {each.id}: "
