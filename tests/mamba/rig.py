"""sglang's own gated-delta-net backend, pools and layers, at a size that suits the machine."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

CHUNK = 64


@dataclass(frozen=True)
class Size:
    """Heads and widths of the layers, and how many there are."""

    layers: int
    key_heads: int
    value_heads: int
    head: int
    dtype: torch.dtype
    page: int = 64


QWEN3_NEXT = Size(layers=36, key_heads=16, value_heads=32, head=128, dtype=torch.bfloat16)
SMALL = Size(layers=2, key_heads=1, value_heads=1, head=32, dtype=torch.float16)


@dataclass(frozen=True)
class Request:
    """One request of a prefill batch: tokens that are new, tokens that are cached."""

    new: int
    cached: int = 0
    tracked: bool = True
    seqlen: int | None = None  # what the scheduler tracks; None: the end of the new tokens

    @property
    def track_seqlen(self) -> int:
        if not self.tracked:
            return -1
        return self.cached + self.new if self.seqlen is None else self.seqlen


def server_args(size: Size) -> Any:
    """The release's own ServerArgs, published as a scheduler publishes it."""
    module = importlib.import_module("sglang.srt.server_args")
    wanted = {
        "model_path": "dummy",
        "attention_backend": "triton",
        "page_size": size.page,
        "mamba_scheduler_strategy": "extra_buffer",
        "mamba_radix_cache_strategy": "extra_buffer",
        "disable_overlap_schedule": False,
        "sampling_backend": "pytorch",
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }
    known = inspect.signature(module.ServerArgs).parameters
    made = module.ServerArgs(**{name: value for name, value in wanted.items() if name in known})
    made._mamba_cache_chunk_size = max(CHUNK, size.page)
    module.set_global_server_args_for_scheduler(made)
    return made


class Rig:
    """A backend with its pools."""

    def __init__(self, size: Size = SMALL, device: str = "cpu", slots: int = 24) -> None:
        self.size = size
        self.device = device
        self.args = server_args(size)
        width = (2 * size.key_heads + size.value_heads) * size.head
        utils = importlib.import_module("sglang.srt.configs.mamba_utils")
        shape = _call(
            utils.Mamba2StateShape,
            conv=[(width, 3)],
            temporal=(size.value_heads, size.head, size.head),
            intermediate_size=size.value_heads * size.head,
            conv_dim=width,
            ssm_state_size=size.head,
            num_heads=size.value_heads,
            head_dim=size.head,
            state_size=size.head,
            conv_kernel=4,
        )
        layers = list(range(size.layers))
        params = utils.Mamba2CacheParams(
            shape=shape,
            layers=layers,
            dtype=utils.Mamba2StateDType(conv=size.dtype, temporal=torch.float32),
        )
        pools = importlib.import_module("sglang.srt.mem_cache.memory_pool")
        self.pool = _call(
            pools.HybridReqToTokenPool,
            size=16,
            mamba_size=slots,
            mamba_spec_state_size=16,
            max_context_len=4096,
            device=device,
            enable_memory_saver=False,
            cache_params=params,
            mamba_layer_ids=layers,
            enable_mamba_extra_buffer=True,
        )
        self.slots = slots
        model_config = SimpleNamespace(
            hf_text_config=SimpleNamespace(), hf_config=SimpleNamespace()
        )
        self.runner = SimpleNamespace(
            device=device,
            req_to_token_pool=self.pool,
            token_to_kv_pool=None,
            server_args=self.args,
            is_draft_worker=False,
            model_config=model_config,
            attn_backend=None,
            hybrid_gdn_config=SimpleNamespace(),
        )
        self.backend = self._backend()
        self.layers = [self._layer(index) for index in layers]

    def _backend(self) -> Any:
        hybrid = importlib.import_module("sglang.srt.layers.attention.hybrid_linear_attn_backend")
        try:
            module = importlib.import_module("sglang.srt.layers.attention.linear.gdn_backend")
        except ModuleNotFoundError:
            return hybrid.GDNAttnBackend(self.runner)
        utils = importlib.import_module("sglang.srt.layers.attention.linear.utils")
        triton = utils.LinearAttnKernelBackend.TRITON
        if hasattr(utils, "LinearAttnBackends"):
            self.runner.linear_attn_backends = _call(
                utils.LinearAttnBackends, decode=triton, prefill=triton, verify=triton
            )
        elif hasattr(utils, "initialize_linear_attn_config"):
            utils.initialize_linear_attn_config(self.args)
        return module.GDNAttnBackend(self.runner)

    def _layer(self, index: int) -> Any:
        size = self.size
        module = importlib.import_module("sglang.srt.layers.radix_linear_attention")
        generator = torch.Generator(self.device).manual_seed(index)

        def random(*shape: int, dtype: torch.dtype = size.dtype) -> torch.Tensor:
            return (torch.randn(*shape, generator=generator, device=self.device) * 0.2).to(dtype)

        width = (2 * size.key_heads + size.value_heads) * size.head
        return _call(
            module.RadixLinearAttention,
            layer_id=index,
            num_q_heads=size.key_heads,
            num_k_heads=size.key_heads,
            num_v_heads=size.value_heads,
            head_q_dim=size.head,
            head_k_dim=size.head,
            head_v_dim=size.head,
            conv_weights=random(width, 4),
            bias=None,
            activation="silu",
            A_log=random(size.value_heads, dtype=torch.float32),
            dt_bias=random(size.value_heads),
        )

    def fill(self) -> None:
        """The same random states in every slot, whenever it is called."""
        generator = torch.Generator(self.device).manual_seed(1234)
        for state in self.states():
            state.normal_(0, 0.1, generator=generator)

    def states(self) -> list[torch.Tensor]:
        cache = self.pool.mamba_pool.mamba_cache
        return [*cache.conv, cache.temporal]

    def batch(self, requests: list[Request], tracking: bool = True, mode: str = "EXTEND") -> Any:
        """A prefill ForwardBatch; with tracking on, its host knowledge as the scheduler has it."""
        info = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
        count = len(requests)
        new = [request.new for request in requests]
        cached = [request.cached for request in requests]
        where: dict[str, Any] = {"device": self.device}
        starts = [sum(new[:row]) for row in range(count)]
        working = torch.arange(1, count + 1, dtype=torch.int32, **where)
        self.pool.req_index_to_mamba_index_mapping[1 : count + 1] = working.to(
            self.pool.req_index_to_mamba_index_mapping.dtype
        )
        mask = [request.tracked for request in requests]
        seqlens = [request.track_seqlen for request in requests]
        total = sum(new)
        fields: dict[str, Any] = {
            "forward_mode": info.ForwardMode[mode],
            "batch_size": count,
            "input_ids": torch.zeros(total, dtype=torch.int64, **where),
            "req_pool_indices": torch.arange(1, count + 1, dtype=torch.int64, **where),
            "seq_lens": torch.tensor([a + b for a, b in zip(new, cached, strict=True)], **where),
            "out_cache_loc": torch.arange(total, dtype=torch.int64, **where),
            "seq_lens_sum": total + sum(cached),
            "seq_lens_cpu": torch.tensor([a + b for a, b in zip(new, cached, strict=True)]),
            "extend_num_tokens": total,
            "extend_seq_lens": torch.tensor(new, dtype=torch.int32, **where),
            "extend_prefix_lens": torch.tensor(cached, dtype=torch.int32, **where),
            "extend_start_loc": torch.tensor(starts, dtype=torch.int32, **where),
            "extend_prefix_lens_cpu": list(cached),
            "extend_seq_lens_cpu": list(new),
        }
        if tracking:
            fields |= {
                "mamba_track_mask": torch.tensor(mask, dtype=torch.bool, **where),
                "mamba_track_seqlens": torch.tensor(seqlens, dtype=torch.int64, **where),
                "mamba_track_indices": torch.arange(
                    self.slots - count, self.slots, dtype=torch.int64, **where
                ),
                "mamba_prefill_track_mask_cpu": list(mask),
                "mamba_track_seqlens_cpu": list(seqlens),
            }
        batch = _call(info.ForwardBatch, **fields)
        batch.requests = requests  # for the caller
        return batch

    def inputs(self, tokens: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
        """What the layers are called with, one for each."""
        size = self.size
        generator = torch.Generator(self.device).manual_seed(seed)
        width = (2 * size.key_heads + size.value_heads) * size.head

        def random(*shape: int) -> torch.Tensor:
            values = torch.randn(*shape, generator=generator, device=self.device) * 0.3
            return values.to(size.dtype)

        return [
            {
                "mixed_qkv": random(tokens, width),
                "a": random(tokens, size.value_heads),
                "b": random(tokens, size.value_heads),
            }
            for _ in self.layers
        ]

    def forward(self, batch: Any, inputs: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
        """One prefill forward: the metadata, then each layer."""
        self.backend.init_forward_metadata(batch)
        return [
            self.backend.forward_extend(layer=layer, forward_batch=batch, **given)
            for layer, given in zip(self.layers, inputs, strict=True)
        ]


def _call(function: Any, **arguments: Any) -> Any:
    """Call with those arguments that this release knows."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in known})
