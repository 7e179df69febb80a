"""The uses that patches declare (`Patch.only_with`): a server that lacks one does not need them.

A use is not a feature (`setups`). A feature gates the patches that were not proven with it; a use
that is missing makes a patch ``not needed``, or gates it if the patch would have an effect
(`GATES`). `ruling` has the rule for all. What only a running server can tell is no use: there the
patch's own code gates it.
"""

from __future__ import annotations

from .feature import NOTHING, Use

_TRTLLM_MLA = ("trtllm_mla", "cutedsl_mla", "tokenspeed_mla")
_PHASES = ("attention.prefill", "attention.decode", "attention.draft")
_FA3 = ("fa3", "minicpm_flashattn", "minicpm_flashinfer")
_STRATEGIES = ("mamba_scheduler_strategy", "mamba_radix_cache_strategy")
_UNTRACKED = (None, "auto", "no_buffer")
_ONE = (None, 0, 1)
NO_MLX = (None, False, "0", "false", "no", "n")
"""Values of ``SGLANG_USE_MLX`` with which MLX does not compute, as stock reads them."""

USES = (
    Use(name="mlx", lacking="MLX is off (SGLANG_USE_MLX)", off={"SGLANG_USE_MLX": NO_MLX}),
    Use(
        name="torch",
        lacking="MLX computes the model (SGLANG_USE_MLX)",
        on={"SGLANG_USE_MLX": NO_MLX},
    ),
    Use(
        name="speculation",
        lacking="speculation is off",
        off={"speculative_algorithm": NOTHING, "decoupled_spec_role": NOTHING},
    ),
    Use(
        name="host-drafts",
        lacking="speculation is not NGRAM, which alone has the fault on this release",
        on={"speculative_algorithm": ("ngram",)},
    ),
    Use(name="mla", lacking="the model has no MLA", off={"model.has_mla": NOTHING}),
    Use(
        name="single-drafts",
        lacking="drafts branch into trees (--speculative-eagle-topk)",
        on={"speculative_eagle_topk": _ONE},
    ),
    Use(
        name="fa3",
        lacking="attention does not run on FlashAttention 3",
        on=dict.fromkeys(_PHASES, _FA3),
    ),
    Use(
        name="triton",
        lacking="attention does not run on Triton",
        # Stock drafts on Triton with that algorithm, whatever else it runs on.
        on={**dict.fromkeys(_PHASES, ("triton",)), "speculative_algorithm": ("frozen_kv_mtp",)},
    ),
    Use(
        name="trtllm-mla",
        lacking="the attention backend of drafts is not TRT-LLM MLA",
        on={"attention.draft": _TRTLLM_MLA},
    ),
    Use(
        name="lengths-on-gpu",
        lacking="attention runs neither on Triton nor on TRT-LLM MLA",
        on=dict.fromkeys(_PHASES, ("triton", *_TRTLLM_MLA)),
    ),
    Use(
        name="two-backends",
        lacking="prefill and decode have one attention backend",
        off={"attention.is_split": NOTHING},
    ),
    Use(
        name="plain-rotary",
        lacking="multimodal rotary positions need the lengths on the host",
        on={"model.has_mrope": NOTHING},
    ),
    Use(
        name="states",
        lacking="the model has no recurrent states",
        off={"model.has_states": NOTHING},
    ),
    Use(
        name="delta-nets",
        lacking="the model has no gated delta nets",
        off={"model.has_delta_nets": NOTHING},
    ),
    Use(name="mamba2", lacking="the model has no Mamba2 layers", off={"model.has_mamba2": NOTHING}),
    Use(
        name="lightning",
        lacking="the model has no lightning attention",
        off={"model.has_lightning": NOTHING},
    ),
    Use(
        name="minimax-kernel",
        lacking="the model's lightning attention does not run on the kernel `minimax`",
        on={"model.linear_kernel": ("minimax",)},
    ),
    Use(
        name="tracked",
        lacking="no states are tracked in extra buffers",
        off=dict.fromkeys(_STRATEGIES, _UNTRACKED),
    ),
    Use(
        name="planned-tracks",
        lacking="no states are tracked in extra buffers",
        on={"model.linear_kernel": ("minimax",)},
        off=dict.fromkeys(_STRATEGIES, _UNTRACKED),
    ),
    Use(
        name="breakable-prefills",
        lacking="prefills run without breakable CUDA graphs",
        on={"graphs.prefill": ("breakable",)},
    ),
    Use(
        name="captured-extends",
        lacking="SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND is set",
        on={"SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND": NO_MLX},
    ),
    Use(
        name="known-gdn-kernel",
        lacking="the prefill kernel of linear attention was not tested "
        "(--linear-attn-prefill-backend)",
        on={"linear_attn_prefill_backend": (None, "triton", "flashinfer")},
        gates=True,
    ),
    Use(
        name="windows",
        lacking="the model has no sliding windows",
        off={"model.has_windows": NOTHING},
    ),
    Use(
        name="window-pool",
        lacking="the model has no sliding-window pool of the kind that the patch knows",
        off={"model.has_window_pool": NOTHING},
    ),
    Use(
        name="poolless-windows",
        lacking="the model is not Gemma 2 or 3, EXAONE 4 or Olmo 3",
        on={
            "model.architecture": (
                *("gemma2forcausallm", "gemma3forcausallm", "gemma3forconditionalgeneration"),
                *("exaone4forcausallm", "olmo2forcausallm"),
            )
        },
    ),
    Use(
        name="known-pool-backend",
        lacking="this --attention-backend was not tested with a window pool of ours",
        on=dict.fromkeys(_PHASES[:2], ("fa3", "triton")),
        every=True,
        gates=True,
    ),
    Use(
        name="one-backend",
        lacking="prefill and decode have different attention backends, which was not tested "
        "(--prefill-attention-backend, --decode-attention-backend)",
        on={"attention.is_split": NOTHING},
        gates=True,
    ),
    Use(
        name="several-requests",
        lacking="one request runs at a time (--max-running-requests 1)",
        off={"max_running_requests": (1,)},
    ),
    Use(
        name="decode-server",
        lacking="the server is not a decode server",
        off={"disaggregation_mode": (*NOTHING, "prefill"), "enable_pd_role_switch": NOTHING},
    ),
    Use(
        name="prefills",
        lacking="a decode server computes no prompts",
        off={"disaggregation_mode": ("decode",), "enable_pd_role_switch": NOTHING},
    ),
    Use(
        name="prefix-cache",
        lacking="the radix cache is off",
        on={"disable_radix_cache": NOTHING},
    ),
    Use(
        name="one-token-pages",
        lacking="a KV page has several tokens",
        on={"page_size": (None, 1)},
    ),
    Use(name="ranks", lacking="the server has one rank", off={"tp_size": (None, 1)}),
    Use(
        name="one-host",
        lacking="the ranks are on several hosts (--nnodes)",
        on={"nnodes": (None, 1)},
    ),
    Use(
        name="own-processes",
        lacking="the ranks are actors of Ray (--use-ray)",
        on={"use_ray": NOTHING},
    ),
    Use(
        name="polling",
        lacking="the processes of an idle server sleep (--sleep-on-idle)",
        on={"sleep_on_idle": NOTHING},
    ),
    Use(
        name="host-cache",
        lacking="the hierarchical cache is off",
        off={"enable_hierarchical_cache": NOTHING},
    ),
    Use(
        name="no-storage",
        lacking="the hierarchical cache has a storage backend, which was not tested "
        "(--hicache-storage-backend)",
        on={"hicache_storage_backend": NOTHING, "enable_hierarchical_cache": NOTHING},
        gates=True,
    ),
    Use(
        name="known-host-cache",
        lacking="the hierarchical cache has a storage backend, or another write policy, layout or "
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
    Use(
        name="tokens-per-state",
        lacking="SGLANG_PERF_PATCHES_TOKENS_PER_STATE is not given",
        off={"SGLANG_PERF_PATCHES_TOKENS_PER_STATE": NOTHING},
        gates=True,
    ),
)
"""All uses. ``model.…`` is read from the release's ``ModelConfig``, ``attention.…`` and
``graphs.…`` from several arguments (`live.published`)."""

GATES = frozenset(use.name for use in USES if use.gates)
"""Those whose lack gates a patch."""
