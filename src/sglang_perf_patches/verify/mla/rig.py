"""A model runner and request pools, as far as the attention backends need them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from .. import stock
from ..stock import EXTRA_ARGUMENTS, NoneByDefault, called, replaced

CONTEXT = 128
REQUESTS = 12

AROUND: Callable[[], AbstractContextManager[Any]] = nullcontext
"""What a backend is made and asked in; the tests put what a CPU needs here."""


def server_args(**settings: Any) -> NoneByDefault:
    """Server arguments of a plain speculative server, with these settings."""
    defaults = {
        "pp_size": 1,
        "dcp_size": 1,
        "speculative_algorithm": "EAGLE",
        "speculative_num_draft_tokens": 4,
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "page_size": 1,
        "kv_cache_dtype": "auto",
        "disaggregation_mode": "null",
        "chunked_prefill_size": 8192,
        "triton_attention_num_kv_splits": 8,
        "disable_piecewise_cuda_graph": True,
        "max_running_requests": REQUESTS,
        "cuda_graph_max_bs": REQUESTS,
        "get_attention_backends": lambda: ("triton", "triton"),
    }
    return NoneByDefault(**{**defaults, **settings, **EXTRA_ARGUMENTS})


def model_runner(
    arguments: NoneByDefault,
    *,
    mla: bool = False,
    seed: int = 0,
    context: int = CONTEXT,
    requests: int = REQUESTS,
    device: str | None = None,
    **attributes: Any,
) -> NoneByDefault:
    """A runner whose requests own scattered tokens of a KV pool, page by page."""
    device = device or stock.device()
    page = arguments.page_size
    is_fp8 = arguments.kv_cache_dtype == "fp8_e4m3"
    count = requests * (context // page)
    pages = torch.randperm(count + 1, generator=torch.Generator().manual_seed(seed))[:count]
    tokens = (pages[:, None] * page + torch.arange(page)).reshape(requests, context)
    pool = NoneByDefault(size=requests, req_to_token=tokens.to(device, torch.int32).contiguous())
    head = 8
    arch = importlib.import_module("sglang.srt.configs.model_config").AttentionArch
    config = NoneByDefault(
        context_len=context,
        num_attention_heads=4,
        head_dim=head,
        v_head_dim=head,
        swa_v_head_dim=head,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        scaling=0.25,
        hf_config=NoneByDefault(architectures=["LlamaForCausalLM"], get_text_config=NoneByDefault),
        hf_text_config=NoneByDefault(num_attention_heads=4, num_key_value_heads=2, head_dim=head),
        get_num_kv_heads=lambda *_: 1 if mla else 2,
        get_max_num_attention_heads=lambda *_: 4,
        attention_arch=arch.MLA if mla else arch.MHA,
    )
    quantisation = NoneByDefault(resolve_attention_access=lambda *_: None)
    defaults = {
        "model_config": config,
        "device": device,
        "gpu_id": 0,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": torch.float8_e4m3fn if is_fp8 else torch.bfloat16,
        "page_size": page,
        "server_args": arguments,
        "max_running_requests": requests,
        "dcp_size": 1,
        "dcp_rank": 0,
        "ps": _ranks(arguments),
        "req_to_token_pool": pool,
        "token_to_kv_pool": NoneByDefault(
            start_layer=0,
            get_value_buffer=lambda _: torch.empty(0, 1, head),
            get_v_head_dim=lambda: head,
            get_kv_cache_quant_method=lambda: quantisation,
        ),
        "token_to_kv_pool_allocator": NoneByDefault(
            translate_loc_from_full_to_swa=lambda locs: locs, get_kvcache=NoneByDefault
        ),
        "decode_num_tokens_per_req": lambda: arguments.speculative_num_draft_tokens,
        "spec_algorithm": NoneByDefault(is_dspark=lambda: False),
    }
    runner = NoneByDefault(**{**defaults, **attributes})
    runner.kv_index_translator = _translator(runner)
    return runner


_ASKED = (
    "sglang.srt.server_args",
    "sglang.srt.runtime_context",
    "sglang.srt.speculative.spec_utils",
    "sglang.srt.layers.dp_attention",
    "sglang.srt.utils.common",
)


@contextmanager
def furnished(arguments: NoneByDefault, *modules: str) -> Iterator[None]:
    """Publish the arguments to modules that ask sglang's process-wide context for them."""
    groups = ("global_server_args", "server_args", "spec", "schedule", "memory", "model", "disagg")
    stand_ins = {
        **{f"get_{group}": lambda: arguments for group in groups},
        "get_exec": lambda: _Exec(arguments),
        "get_attention_tp_size": lambda: arguments.tp_size or 1,
        "get_parallel": lambda: _ranks(arguments),
        "get_device_core_count": lambda *_: 8,
        "get_cuda_graph_max_batch_size": lambda *args: next(n for n in args if isinstance(n, int)),
        "cuda_graph_fully_disabled": lambda: False,
        "check_cuda_graph_backend": lambda *_: False,
        "mambaish_config": lambda _: None,
        "resolve_draft_decode_window": lambda _: (0, 0),
    }
    asking = [*map(importlib.import_module, modules), *filter(None, map(_module, _ASKED))]
    with replaced(asking, stand_ins), AROUND():
        yield


class _Exec:
    """The execution arguments, of which each bag answers for all."""

    def __init__(self, arguments: NoneByDefault) -> None:
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        return vars(self._arguments).get(name, self._arguments)


def _ranks(arguments: NoneByDefault) -> NoneByDefault:
    """The rank of a single process, or of one that the arguments name."""
    size = arguments.tp_size or 1
    sizes = {"attn_tp_size": size, "tp_size": size, "attn_cp_size": 1, "pp_size": 1}
    return NoneByDefault(**sizes, attn_dcp_size=1, dcp_size=1, dcp_rank=0, attn_dcp_rank=0)


def _module(name: str) -> Any:
    """A module; None if the release lacks it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _translator(runner: NoneByDefault) -> Any:
    """What reads the request pool from 0.5.19 on: stock's own."""
    module = _module("sglang.srt.mem_cache.kv_index_translator")
    if module is None:
        return None
    with furnished(NoneByDefault(), module.__name__):
        return called(
            module.KVIndexTranslator,
            req_to_token=runner.req_to_token_pool.req_to_token,
            token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
            token_to_kv_pool=runner.token_to_kv_pool,
            page_size=runner.page_size,
            device=runner.device,
        )
