"""What stock's own code makes of a hybrid model's memory, on the release on PYTHONPATH.

``python split_worker.py JOBS`` first prints, as JSON, of which architectures the release tracks
states by itself. Then it prints an object for each of the jobs, JSON as well: ``{"config": a
model's config.json, "ranks", "gib", "strategy", "skip", "settings"}``. The release's own are the
configuration's class, the arguments as it publishes them, and the arithmetic of states, KV and
requests. The number of GPUs stands in, and what they have free.
"""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import contextlib
import importlib
import json
import os
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.proof import requests, stubs

stubs.lend()

import torch

from sglang_perf_patches.verify.mamba.rig import publish
from sglang_perf_patches.verify.stock import NoneByDefault

CLASSES = {
    "qwen3_next": ("qwen3_next", "Qwen3NextConfig"),
    "qwen3_5_moe": ("qwen3_5", "Qwen3_5MoeTextConfig"),
    "falcon_h1": ("falcon_h1", "FalconH1Config"),
    "nemotron_h": ("nemotron_h", "NemotronHConfig"),
    "kimi_linear": ("kimi_linear", "KimiLinearConfig"),
}
SKIP = "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"
CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator"
MIXIN = "sglang.srt.model_executor.model_runner_kv_cache_mixin"
POOLS = "sglang.srt.model_executor.pool_configurator"
CONTEXT = 262_144


def found(job: dict[str, Any]) -> dict[str, Any]:
    """Bytes of a state and of a token, and what the release makes of the memory."""
    given = job["config"]
    module, name = CLASSES[given["model_type"]]
    kind = getattr(importlib.import_module(f"sglang.srt.configs.{module}"), name)
    config = kind(**(given.get("text_config") or given))
    os.environ[SKIP] = str(int(job["skip"]))
    arguments = publish(1, job["strategy"], device="cpu", **job["settings"])
    if arguments.mamba_full_memory_ratio is None:  # an argument that a model's file may set
        arguments = publish(
            1, job["strategy"], device="cpu", mamba_full_memory_ratio=0.9, **job["settings"]
        )
    owner = configurator(config, arguments)
    with ranks(job["ranks"]):
        state = config.mamba2_cache_params.mamba_cache_per_req
        token = cell(config, job["ranks"])
        # The method that divides the memory, by each name that it has had.
        divide = getattr(owner, "_handle_max_mamba_cache", None) or owner.handle_max_mamba_cache
        rest = divide(job["gib"])
    tokens = int(rest * 2**30) // token
    slots = max_slots(arguments)
    return {
        "state": state,
        "token": token,
        "slots": slots,
        "tokens": tokens,
        "running": running(owner, tokens, slots),
    }


def configurator(config: Any, arguments: Any) -> Any:
    """The release's own, without what it would ask of a GPU when it is made."""
    given = {
        "mambaish_config": config,
        "hybrid_gdn_config": None,
        "hybrid_kda_config": None,
        "server_args": arguments,
        "spec_algorithm": requests.speculation().NONE,
        "model_config": SimpleNamespace(context_len=CONTEXT),
        "dp_size": 1,
        "attn_dp_size": 1,
        "pp_size": 1,
        "ps": SimpleNamespace(attn_dp_size=1, pp_size=1),
        "extra_mamba_cache_bytes_per_req": 0,
        "fused_entry_bytes": lambda *_: None,
    }
    try:
        kind = importlib.import_module(CONFIGURATOR).KVCacheConfigurator
    except ModuleNotFoundError:
        kind = importlib.import_module(MIXIN).ModelRunnerKVCacheMixin
    # Attributes of a class, because some releases' objects have slots and properties.
    return object.__new__(type("Configurator", (kind,), given))


def max_slots(arguments: Any) -> int:
    with contextlib.suppress(ImportError):
        from sglang.srt.runtime_context import get_schedule

        return int(get_schedule().max_mamba_cache_size)
    return int(arguments.max_mamba_cache_size)


def running(owner: Any, tokens: int, slots: int) -> int:
    for name in ("resolve_max_num_reqs", "_resolve_max_num_reqs"):
        if hasattr(owner, name):
            return int(getattr(owner, name)(tokens))
    # 0.5.9 does it in the midst of making the pools.
    arguments = owner.server_args
    constant = importlib.import_module(MIXIN).MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO
    each = 1 if arguments.disable_radix_cache else constant
    return int(min(arguments.max_running_requests, slots // each))


def tracked(architectures: list[str]) -> dict[str, bool]:
    arguments = importlib.import_module("sglang.srt.server_args").ServerArgs
    with contextlib.suppress(ImportError):
        from sglang.srt.arg_groups.overrides import _MAMBA_EXTRA_BUFFER_ARCHS

        return {name: name in _MAMBA_EXTRA_BUFFER_ARCHS for name in architectures}
    asks = getattr(arguments, "_support_mamba_cache_extra_buffer", None)
    view = SimpleNamespace(linear_attn_backend="triton")
    return {name: bool(asks and asks(view, name)) for name in architectures}


def cell(config: Any, number: int) -> int:
    """Bytes of KV of one token, as the release adds them up."""
    latent = getattr(config, "kv_lora_rank", None)
    model = NoneByDefault(
        hf_config=NoneByDefault(architectures=["HybridForCausalLM"]),
        hf_text_config=NoneByDefault(architectures=["HybridForCausalLM"]),
        get_num_kv_heads=lambda *_: max(1, config.num_key_value_heads // number),
        head_dim=getattr(config, "head_dim", None) or config.attention_head_dim,
        v_head_dim=getattr(config, "head_dim", None) or config.attention_head_dim,
        kv_lora_rank=latent,
        qk_rope_head_dim=getattr(config, "qk_rope_head_dim", None),
    )
    runner = NoneByDefault(
        model_config=model,
        kv_cache_dtype=torch.bfloat16,
        use_mla_backend=bool(latent),
        is_draft_worker=False,
        server_args=NoneByDefault(),
    )
    layers = len(config.full_attention_layer_ids)
    try:
        kind = importlib.import_module(POOLS).DefaultPoolConfigurator
    except ModuleNotFoundError:
        mixin = importlib.import_module(MIXIN).ModelRunnerKVCacheMixin
        return int(mixin.get_cell_size_per_token(runner, layers))
    configurator = object.__new__(type("Default", (kind,), {"kv_cache_dtype_str": "auto"}))
    return int(configurator._compute_cell_size(runner, layers))


@contextlib.contextmanager
def ranks(number: int) -> Any:
    importlib.import_module("sglang.srt.layers.dp_attention")  # where some ask
    parallel = NoneByDefault(attn_tp_size=number, attn_dcp_size=1, pp_size=1)
    instead = {
        "get_attention_tp_size": lambda: number,
        "linear_attn_tp_size": lambda: number,
        "get_parallel": lambda: parallel,
    }
    with contextlib.ExitStack() as stack:
        for module in list(sys.modules.values()):
            if not getattr(module, "__name__", "").startswith("sglang."):
                continue
            for name, function in instead.items():
                if name in vars(module):
                    stack.enter_context(mock.patch.object(module, name, function))
        yield


if __name__ == "__main__":
    JOBS = json.loads(sys.argv[1])
    print(json.dumps(tracked(sorted({each["config"]["architectures"][0] for each in JOBS}))))
    for each in JOBS:
        print(json.dumps(found(each)), flush=True)
