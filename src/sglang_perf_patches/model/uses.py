"""The uses that patches declare (`Patch.only_with`): a server that lacks one does not need them.

A use is not a feature (`setups`). A feature gates the patches that were not proven with it; a use
that is missing makes a patch ``not needed``. `ruling` has the rule for both.
"""

from __future__ import annotations

from .feature import NOTHING, Use

_TRTLLM_MLA = ("trtllm_mla", "cutedsl_mla", "tokenspeed_mla")
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
    Use(name="mla", lacking="the model has no MLA", off={"model.has_mla": NOTHING}),
    Use(
        name="trtllm-mla",
        lacking="the attention backend is not TRT-LLM MLA",
        on={
            "attention_backend": (None, *_TRTLLM_MLA),  # None: the release chooses one later
            "decode_attention_backend": _TRTLLM_MLA,
            "speculative_draft_attention_backend": _TRTLLM_MLA,
        },
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
    Use(
        name="other-states",
        lacking="the model has no recurrent states other than delta nets",
        off={"model.has_other_states": NOTHING},
    ),
    Use(
        name="windows",
        lacking="the model has no sliding windows",
        off={"model.has_windows": NOTHING},
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
)
"""All uses. ``model.…`` is read from the release's ``ModelConfig`` (`live.published.of_model`)."""
