"""sglang's own linear-attention backends, pools and layers, at a size that suits the machine."""

from __future__ import annotations

import atexit
import functools
import importlib
import shutil
import tempfile
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch

from .. import stock
from ..stock import EXTRA_ARGUMENTS, NoneByDefault, called
from .cases import CHUNK, Batch

ATTENTION = "sglang.srt.layers.attention"


@dataclass(frozen=True)
class Size:
    """Heads and widths of the layers, and how many there are."""

    layers: int
    key_heads: int
    value_heads: int
    head: int
    dtype: torch.dtype

    @property
    def mixed(self) -> int:
        """Values of a token's queries, keys and values."""
        return (2 * self.key_heads + self.value_heads) * self.head


SMALL = Size(layers=2, key_heads=1, value_heads=1, head=32, dtype=torch.float16)
ON_GPU = Size(layers=2, key_heads=16, value_heads=32, head=128, dtype=torch.bfloat16)
"""Qwen3-Next's dimensions: kernels of a GPU are compiled for them."""
WIDER = Size(layers=2, key_heads=1, value_heads=1, head=64, dtype=torch.float16)
"""The least that the lightning-attention kernels take."""


class Rig:
    """The gated-delta-net backend with the release's pool of requests and states, and layers.

    `runner` stands for the ModelRunner. Each layer draws its weights from a seed of its own.
    """

    def __init__(self, size: Size = SMALL, slots: int = 24, requests: int = 16) -> None:
        self.size = size
        self.device = device = stock.device()
        self.slots = slots
        self.args = _server_args(device)
        layers = list(range(size.layers))
        sizes = (size.dtype, requests, slots)
        self.pool = request_pool(self._widths(), layers, *sizes, device=device)
        self.runner = NoneByDefault(
            device=device,
            req_to_token_pool=self.pool,
            server_args=self.args,
            is_draft_worker=False,
            model_config=self._model_config(),
            hybrid_gdn_config=SimpleNamespace(),
        )
        self.backend = self._backend()
        self.layers = [self._layer(index) for index in layers]

    def _widths(self) -> dict[str, Any]:
        """Shapes of the states."""
        size = self.size
        return {
            "conv": [(size.mixed, 3)],
            "temporal": (size.value_heads, size.head, size.head),
            "intermediate_size": size.value_heads * size.head,
            "conv_dim": size.mixed,
            "ssm_state_size": size.head,
            "num_heads": size.value_heads,
            "head_dim": size.head,
            "state_size": size.head,
            "conv_kernel": 4,
        }

    def _model_config(self) -> Any:
        return NoneByDefault(hf_text_config=SimpleNamespace(), hf_config=SimpleNamespace())

    def _backend(self) -> Any:
        name = f"{ATTENTION}.linear.gdn_backend"
        if find_spec(name) is None:  # on 0.5.9, which has no kernels to choose from
            name = f"{ATTENTION}.hybrid_linear_attn_backend"
        else:
            utils = importlib.import_module(f"{ATTENTION}.linear.utils")
            triton = utils.LinearAttnKernelBackend.TRITON
            if hasattr(utils, "LinearAttnBackends"):
                chosen = dict.fromkeys(("decode", "prefill", "verify"), triton)
                self.runner.linear_attn_backends = called(utils.LinearAttnBackends, **chosen)
            else:
                utils.initialize_linear_attn_config(self.args)
        return importlib.import_module(name).GDNAttnBackend(self.runner)

    def _layer(self, index: int) -> Any:
        size = self.size
        module = importlib.import_module("sglang.srt.layers.radix_linear_attention")
        random = self._random(index, 0.2)
        return called(
            module.RadixLinearAttention,
            layer_id=index,
            num_q_heads=size.key_heads,
            num_k_heads=size.key_heads,
            num_v_heads=size.value_heads,
            head_q_dim=size.head,
            head_k_dim=size.head,
            head_v_dim=size.head,
            conv_weights=random(size.mixed, 4),
            bias=None,
            activation="silu",
            A_log=random(size.value_heads).float(),
            dt_bias=random(size.value_heads),
        )

    def inputs(self, tokens: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
        """What the layers are called with, one for each."""
        size = self.size
        random = self._random(seed, 0.3)
        widths = {"mixed_qkv": size.mixed, "a": size.value_heads, "b": size.value_heads}
        return [{name: random(tokens, n) for name, n in widths.items()} for _ in self.layers]

    def run(self, layer: Any, batch: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """One layer of a forward whose metadata is there."""
        decodes = batch.forward_mode.is_decode()
        method = self.backend.forward_decode if decodes else self.backend.forward_extend
        output: torch.Tensor = method(layer=layer, forward_batch=batch, **inputs)
        return output

    def forward(self, batch: Any, inputs: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
        """One forward: the metadata, then each layer."""
        self.backend.init_forward_metadata(batch)
        of_layers = zip(self.layers, inputs, strict=True)
        return [self.run(layer, batch, of_layer) for layer, of_layer in of_layers]

    def fill(self) -> None:
        """The same random states in every slot, whenever it is called."""
        generator = torch.Generator(self.device).manual_seed(1234)
        for state in self.states():
            state.normal_(0, 0.1, generator=generator)

    def states(self) -> list[torch.Tensor]:
        """All convolution states and the recurrent states."""
        cache = self.pool.mamba_pool.mamba_cache
        return [*cache.conv, cache.temporal]

    def batch(self, wanted: Batch) -> Any:
        """A ForwardBatch; with tracking on, its host knowledge as the scheduler has it."""
        info = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
        tensor = functools.partial(torch.tensor, device=self.device)
        count = len(wanted.requests)
        new = [request.new for request in wanted.requests]
        cached = [request.cached for request in wanted.requests]
        lens = [a + b for a, b in zip(new, cached, strict=True)]
        rows = tensor(range(1, count + 1))
        mapping = self.pool.req_index_to_mamba_index_mapping
        mapping[1 : count + 1] = rows.to(mapping.dtype)
        fields: dict[str, Any] = {
            "forward_mode": info.ForwardMode[wanted.mode],
            "batch_size": count,
            "input_ids": tensor([0] * wanted.tokens),
            "req_pool_indices": rows,
            "seq_lens": tensor(lens),
            "out_cache_loc": tensor(range(wanted.tokens)),
            "seq_lens_sum": sum(lens),
            "seq_lens_cpu": torch.tensor(lens),
        }
        if wanted.mode != "DECODE":
            starts = [sum(new[:row]) for row in range(count)]
            fields |= {
                "extend_num_tokens": wanted.tokens,
                "extend_seq_lens": tensor(new, dtype=torch.int32),
                "extend_prefix_lens": tensor(cached, dtype=torch.int32),
                "extend_start_loc": tensor(starts, dtype=torch.int32),
                "extend_prefix_lens_cpu": cached,
                "extend_seq_lens_cpu": new,
            }
        if wanted.tracking:
            mask = [request.tracked for request in wanted.requests]
            fields["mamba_track_mask"] = tensor(mask)
            fields["mamba_track_indices"] = tensor(range(self.slots - count, self.slots))
            if wanted.mode != "DECODE":
                seqlens = [request.track_seqlen for request in wanted.requests]
                fields["mamba_track_seqlens"] = tensor(seqlens)
                fields["mamba_track_seqlens_cpu"] = seqlens
                fields["mamba_prefill_track_mask_cpu"] = mask
        batch = called(info.ForwardBatch, **fields)
        batch.spec_info = None
        return batch

    def _random(self, seed: int, scale: float) -> Any:
        generator = torch.Generator(self.device).manual_seed(seed)

        def random(*shape: int) -> torch.Tensor:
            values = torch.randn(*shape, generator=generator, device=self.device) * scale
            return values.to(self.size.dtype)

        return random


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


def request_pool(
    widths: dict[str, Any], layers: list[int], dtype: torch.dtype, rows: int, slots: int, **own: Any
) -> Any:
    """The release's pool of requests, at most `rows`, and states, in `slots`.

    `widths` are the states' shapes (see `Rig._widths`), `layers` the layers' ids. The states of the
    convolution are of `dtype`, the others float32. `own` are options of the release's class.
    """
    utils = importlib.import_module("sglang.srt.configs.mamba_utils")
    params = utils.Mamba2CacheParams(
        shape=called(utils.Mamba2StateShape, **widths),
        layers=layers,
        dtype=utils.Mamba2StateDType(conv=dtype, temporal=torch.float32),
    )
    usual = {
        "size": rows,
        "mamba_size": slots,
        "mamba_spec_state_size": rows,
        "max_context_len": 4096,
        "device": "cpu",
        "enable_memory_saver": False,
        "cache_params": params,
        "mamba_layer_ids": layers,
        "enable_mamba_extra_buffer": True,
        "enable_mamba_extra_buffer_lazy": False,
    }
    module = importlib.import_module(f"{stock.MEMORY}.memory_pool")
    return called(module.HybridReqToTokenPool, **usual | own)


@functools.cache
def alone() -> None:
    """A process group of this process only, which layers and batches ask for its size."""
    state = importlib.import_module("sglang.srt.distributed.parallel_state")
    folder = tempfile.mkdtemp()  # later groups use its file too
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    own = {"world_size": 1, "rank": 0, "local_rank": 0, "backend": "gloo"}
    called(
        state.init_distributed_environment, distributed_init_method=f"file://{folder}/met", **own
    )
    # Whatever server is published: 0.5.23 makes the groups of these.
    widths = (
        *("tp_size", "attn_tp_size", "attn_dp_size", "attn_cp_size"),
        *("moe_ep_size", "moe_dp_size", "moe_tp_size"),
    )
    stock.state_ranks(tp_rank=0, attn_tp_rank=0, **dict.fromkeys(widths, 1))
    state.initialize_model_parallel()


@functools.cache  # a second publication would drop the process groups
def _server_args(device: str) -> Any:
    return publish(CHUNK, "extra_buffer", disable_overlap_schedule=False, device=device)


def publish(page: int, strategy: str, **options: Any) -> Any:
    """The release's own ServerArgs, published as a scheduler publishes it.

    `page` has tokens; `strategy` says how states are tracked, by each name that a release has.
    """
    own = {
        "attention_backend": "triton",
        "page_size": page,
        "mamba_scheduler_strategy": strategy,
        "mamba_radix_cache_strategy": strategy,
        "sampling_backend": "pytorch",
    }
    server_args = stock.arguments(**own | options | EXTRA_ARGUMENTS)
    server_args._mamba_cache_chunk_size = max(CHUNK, page)
    stock.publish(server_args)
    return server_args
