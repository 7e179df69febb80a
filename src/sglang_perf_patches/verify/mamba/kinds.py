"""The rigs of other linear layers than gated delta nets: lightning attention and Mamba2."""

from __future__ import annotations

import importlib
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch

from ..stock import called
from .cases import CHUNK
from .rig import ATTENTION, Rig, Size, alone

WIDER = Size(layers=2, key_heads=1, value_heads=1, head=64, dtype=torch.float16)
"""The least that the lightning-attention kernels take."""


class Lightning(Rig):
    """The lightning-attention backend, with the ``seg_la`` kernel or the ``minimax`` one."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        # ``minimax`` wants all operands in float32.
        super().__init__(replace(WIDER, dtype=torch.float32) if kernel == "minimax" else WIDER)

    def _model_config(self) -> Any:
        config = SimpleNamespace(
            num_attention_heads=self.size.value_heads,
            num_hidden_layers=self.size.layers,
            linear_backend=self.kernel,
        )
        return SimpleNamespace(
            hf_config=config, hf_text_config=config, is_encoder_decoder=False, context_len=4096
        )

    def _backend(self) -> Any:
        alone()
        module = importlib.import_module(f"{ATTENTION}.linear.lightning_backend")
        self.runner.kv_cache_dtype = self.size.dtype
        self.runner.kv_cache_dtype_str = "auto"
        return module.LightningAttentionBackend(self.runner)

    def _layer(self, index: int) -> Any:
        module = importlib.import_module("sglang.srt.layers.radix_attention")
        heads, head = self.size.value_heads, self.size.head
        return module.RadixAttention(heads, head, head**-0.5, heads, index)

    def inputs(self, tokens: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
        """Queries, keys and values for each layer."""
        random = self._random(seed, 0.3)
        heads, head = self.size.value_heads, self.size.head
        return [{name: random(tokens, heads, head) for name in "qkv"} for _ in self.layers]


class Mamba2(Rig):
    """The Mamba2 backend with the release's own mixers, and the Triton convolution."""

    hidden = 32
    groups = 1
    state = 16

    def _widths(self) -> dict[str, Any]:
        size = self.size
        inner = size.value_heads * size.head
        width = inner + 2 * self.groups * self.state
        return {
            **super()._widths(),
            "conv": [(width, 3)],
            "temporal": (size.value_heads, size.head, self.state),
            "intermediate_size": inner,
            "conv_dim": width,
            "ssm_state_size": self.state,
            "state_size": self.state,
        }

    def _model_config(self) -> Any:
        configs = importlib.import_module("sglang.srt.configs")
        config = configs.NemotronHConfig(mamba_chunk_size=CHUNK, chunk_size=CHUNK)
        return SimpleNamespace(
            hf_config=config, hf_text_config=config, is_draft_model=False, mamba_chunk_size=CHUNK
        )

    def _backend(self) -> Any:
        alone()
        module = importlib.import_module(f"{ATTENTION}.hybrid_linear_attn_backend")
        self.runner.mamba2_config = self.runner.model_config.hf_config
        return module.Mamba2AttnBackend(self.runner)

    def _layer(self, index: int) -> Any:
        module = importlib.import_module(f"{ATTENTION}.mamba.mamba")
        _lend_convolution(module)
        utils = importlib.import_module("sglang.srt.configs.mamba_utils")
        mixer = called(
            module.MambaMixer2,
            cache_params=utils.Mamba2CacheParams(
                shape=called(utils.Mamba2StateShape, **self._widths()), layers=[index]
            ),
            hidden_size=self.hidden,
            use_conv_bias=True,
            use_bias=False,
            n_groups=self.groups,
        ).to(self.device, self.size.dtype)
        random = self._random(index, 0.2)
        for parameter in mixer.parameters():
            parameter.requires_grad_(False)
            parameter.copy_(random(*parameter.shape))
        mixer.A.data = -random(*mixer.A.shape).float().abs()
        return mixer

    def inputs(self, tokens: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
        """Hidden states for each layer."""
        random = self._random(seed, 0.3)
        return [{"hidden_states": random(tokens, self.hidden)} for _ in self.layers]

    def run(self, layer: Any, batch: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """One mixer."""
        hidden = inputs["hidden_states"]
        output = torch.empty_like(hidden)
        returned = called(
            self.backend.forward,
            mixer=layer,
            hidden_states=hidden,
            output=output,
            layer_id=self.layers.index(layer),
            forward_batch=batch,
            use_triton_causal_conv=True,
        )
        return output if returned is None else returned


def _lend_convolution(module: Any) -> None:
    """The Triton convolutions under the names that the mixers import on a GPU only."""
    place = "sglang.kernels.ops" if find_spec("sglang.kernels") else ATTENTION  # from 0.5.16 on
    kernels = importlib.import_module(f"{place}.mamba.causal_conv1d_triton")
    for kernel in ("causal_conv1d_fn", "causal_conv1d_update"):
        for name in (kernel, f"{kernel}_triton"):
            vars(module).setdefault(name, getattr(kernels, kernel))
