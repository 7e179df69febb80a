"""The uses that patches declare (`Patch.only_with`): a server that lacks one does not need them.

A use is not a feature (`setups`). A feature gates the patches that were not proven with it; a use
that is missing makes a patch ``not needed``, or gates it if the patch would have an effect
(`GATES`). `ruling` has the rule for all. What only a running server can tell is no use: there the
patch's own code gates it.
"""

from __future__ import annotations

from typing import Any

from .feature import NOTHING, Use

_TRTLLM_MLA = ("trtllm_mla", "cutedsl_mla", "tokenspeed_mla")
_PHASES = ("attention.prefill", "attention.decode", "attention.draft")
_FA3 = ("fa3", "minicpm_flashattn", "minicpm_flashinfer")
TRACKING = ("mamba_scheduler_strategy", "mamba_radix_cache_strategy")
_UNTRACKED = (None, "auto", "no_buffer")
AT_MOST_ONE = (None, 0, 1)
NO_MLX = (None, False, "0", "false", "no", "n")
"""Values of ``SGLANG_USE_MLX`` with which MLX does not compute, as stock reads them."""


def _use(name: str, lacking: str, **rest: Any) -> Use:
    return Use(name=name, lacking=lacking, **rest)


USES = (
    _use("mlx", "MLX is off (SGLANG_USE_MLX)", off={"SGLANG_USE_MLX": NO_MLX}),
    _use("torch", "MLX computes the model (SGLANG_USE_MLX)", on={"SGLANG_USE_MLX": NO_MLX}),
    _use(
        "speculation",
        "speculation is off",
        off={"speculative_algorithm": NOTHING, "decoupled_spec_role": NOTHING},
    ),
    _use(
        "host-drafts",
        "speculation is not NGRAM, which alone has the fault on this release",
        on={"speculative_algorithm": ("ngram",)},
    ),
    _use("mla", "the model has no MLA", off={"model.has_mla": NOTHING}),
    _use(
        "single-drafts",
        "drafts branch into trees (--speculative-eagle-topk)",
        on={"speculative_eagle_topk": AT_MOST_ONE},
    ),
    _use("fa3", "attention does not run on FlashAttention 3", on=dict.fromkeys(_PHASES, _FA3)),
    _use(
        "fa3-prefills",
        "the attention of prefills does not run on FlashAttention 3",
        on={"attention.prefill": ("fa3",)},
    ),
    _use(
        "triton",
        "attention does not run on Triton",
        # Stock drafts on Triton with that algorithm, whatever else it runs on.
        on={**dict.fromkeys(_PHASES, ("triton",)), "speculative_algorithm": ("frozen_kv_mtp",)},
    ),
    _use(
        "triton-only",
        "prefills and decoding do not both run on Triton",
        on=dict.fromkeys(_PHASES[:2], ("triton",)),
        every=True,
    ),
    _use(
        "frozen-drafts",
        "no draft reads the target's KV (speculation by FROZEN_KV_MTP)",
        on={"speculative_algorithm": ("frozen_kv_mtp",)},
    ),
    _use(
        "drafts-of-one",
        "data parallelism is on with a draft model, which was not tested",
        on={"drafts.replicated": NOTHING},
        gates=True,
    ),
    _use(
        "trtllm-mla",
        "the attention backend of drafts is not TRT-LLM MLA",
        on={"attention.draft": _TRTLLM_MLA},
    ),
    _use(
        "lengths-on-gpu",
        "attention runs neither on Triton nor on TRT-LLM MLA",
        on=dict.fromkeys(_PHASES, ("triton", *_TRTLLM_MLA)),
    ),
    _use(
        "two-backends",
        "prefill and decode have one attention backend",
        off={"attention.is_split": NOTHING},
    ),
    _use(
        "plain-rotary",
        "multimodal rotary positions need the lengths on the host",
        on={"model.has_mrope": NOTHING},
    ),
    _use("states", "the model has no recurrent states", off={"model.has_states": NOTHING}),
    _use("delta-nets", "the model has no gated delta nets", off={"model.has_delta_nets": NOTHING}),
    _use("mamba2", "the model has no Mamba2 layers", off={"model.has_mamba2": NOTHING}),
    _use("lightning", "the model has no lightning attention", off={"model.has_lightning": NOTHING}),
    _use(
        "minimax-kernel",
        "the model's lightning attention does not run on the kernel `minimax`",
        on={"model.linear_kernel": ("minimax",)},
    ),
    _use(
        "tracked",
        "no states are tracked in extra buffers",
        off=dict.fromkeys(TRACKING, _UNTRACKED),
    ),
    _use(
        "planned-tracks",
        "no states are tracked in extra buffers",
        on={"model.linear_kernel": ("minimax",)},
        off=dict.fromkeys(TRACKING, _UNTRACKED),
    ),
    _use(
        "breakable-prefills",
        "prefills run without breakable CUDA graphs",
        on={"graphs.prefill": ("breakable",)},
    ),
    _use(
        "captured-extends",
        "SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND is set",
        on={"SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND": NO_MLX},
    ),
    _use(
        "known-gdn-kernel",
        "the prefill kernel of gated delta nets was not tested "
        "(--linear-attn-prefill-backend, --linear-attn-backend, --mamba-ssm-dtype)",
        on={"gdn.prefill": (None, "triton", "flashinfer")},
        gates=True,
    ),
    _use(
        "windows",
        "the model has no sliding windows of the usual kind",
        off={"model.has_windows": NOTHING},
    ),
    _use(
        "no-chunks",
        "the model attends in chunks, as Llama 4 does",
        on={"model.attends_in_chunks": NOTHING},
    ),
    _use(
        "window-pool",
        "the model has no sliding-window pool of the kind that the patch knows",
        off={"model.has_window_pool": NOTHING},
    ),
    _use(
        "poolless-windows",
        "the model is not Gemma 2 or 3, EXAONE 4 or Olmo 3",
        on={
            "model.architecture": (
                *("gemma2forcausallm", "gemma3forcausallm", "gemma3forconditionalgeneration"),
                *("exaone4forcausallm", "olmo2forcausallm"),
            )
        },
    ),
    _use(
        "known-pool-backend",
        "this --attention-backend was not tested with a window pool of ours",
        on=dict.fromkeys(_PHASES[:2], ("fa3", "triton")),
        every=True,
        gates=True,
    ),
    _use(
        "one-backend",
        "prefill and decode have different attention backends, which was not tested "
        "(--prefill-attention-backend, --decode-attention-backend)",
        on={"attention.is_split": NOTHING},
        gates=True,
    ),
    _use(
        "several-requests",
        "one request runs at a time (--max-running-requests 1)",
        off={"max_running_requests": (1,)},
    ),
    _use(
        "request-limit",
        "--max-running-requests is not given",
        off={"max_running_requests": NOTHING},
        gates=True,
    ),
    _use(
        "stock-window-ratio",
        "the operator or the model sizes the sliding-window pool (--swa-full-tokens-ratio)",
        on={"swa_full_tokens_ratio": (None, 0.8), "_swa_full_tokens_ratio_explicitly_set": NOTHING},
        every=True,
        gates=True,
    ),
    _use(
        "decode-server",
        "the server is not a decode server",
        off={"disaggregation_mode": (*NOTHING, "prefill"), "enable_pd_role_switch": NOTHING},
    ),
    _use(
        "prefills",
        "a decode server computes no prompts",
        off={"disaggregation_mode": ("decode",), "enable_pd_role_switch": NOTHING},
    ),
    _use("prefix-cache", "the radix cache is off", on={"disable_radix_cache": NOTHING}),
    _use("one-token-pages", "a KV page has several tokens", on={"page_size": (None, 1)}),
    _use("ranks", "the server has one rank", off={"tp_size": (None, 1)}),
    _use("one-host", "the ranks are on several hosts (--nnodes)", on={"nnodes": (None, 1)}),
    _use("own-processes", "the ranks are actors of Ray (--use-ray)", on={"use_ray": NOTHING}),
    _use(
        "polling",
        "the processes of an idle server sleep (--sleep-on-idle)",
        on={"sleep_on_idle": NOTHING},
    ),
    _use("host-cache", "the hierarchical cache is off", off={"enable_hierarchical_cache": NOTHING}),
    _use(
        "no-storage",
        "the hierarchical cache has a storage backend, which was not tested "
        "(--hicache-storage-backend)",
        on={"hicache_storage_backend": NOTHING, "enable_hierarchical_cache": NOTHING},
        gates=True,
    ),
    _use(
        "known-host-cache",
        "the hierarchical cache has a storage backend, or another write policy, layout or "
        "backend than the tested one (--hicache-…)",
        on={
            "hicache_write_policy": ("write_through",),
            "hicache_storage_backend": NOTHING,
            "hicache_host_memory_mode": ("cache",),
            "hicache_mem_layout": ("page_first",),
            "hicache_io_backend": ("kernel",),
        },
        every=True,
        gates=True,
    ),
    _use(
        "tokens-per-state",
        "SGLANG_PERF_PATCHES_TOKENS_PER_STATE is not given",
        off={"SGLANG_PERF_PATCHES_TOKENS_PER_STATE": NOTHING},
        gates=True,
    ),
)
"""All uses. ``model.…`` is read from the release's ``ModelConfig``; ``attention.…``, ``graphs.…``,
``gdn.…`` and ``drafts.…`` are read from several arguments (`live.published`)."""

GATES = frozenset(use.name for use in USES if use.gates)
"""Those whose lack gates a patch."""
