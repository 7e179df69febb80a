"""The relay's tokens arrive with a device that refuses operands of another one; stock's do not.

A stand-in for ``mps`` refuses them, as on a Mac: its tensors are CPU tensors of a class of their
own. Copies from one device to the other work.
"""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import require
from tests.proof.mlx.hybrid_cache import on_mlx
from tests.proof.requests import speculation

PATCH = "mlx.relay-device"
_MADE = (torch.empty, torch.full, torch.zeros, torch.ones)
_COPIES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.copy_)


class OnMps(torch.Tensor):  # type: ignore[misc]
    """A tensor of the device."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if func is torch.Tensor.device.__get__:
            return torch.device("mps")
        # A number may be on the CPU.
        others = [each for each in tensors if not isinstance(each, OnMps) and each.dim()]
        if func not in _COPIES and others:
            raise RuntimeError(f"{func.__name__}: tensors are on mps and on {others[0].device}")
        result = super().__torch_function__(func, types, args, kwargs)
        if func is torch.Tensor.cpu or (func is torch.Tensor.to and "cpu" in map(str, args)):
            return result.as_subclass(torch.Tensor)
        return result


class Mps(TorchFunctionMode):  # type: ignore[misc]
    """Makes the tensors that are asked for on ``mps``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _MADE and str(kwargs.get("device")).startswith("mps"):
            return func(*args, **{**kwargs, "device": "cpu"}).as_subclass(OnMps)
        return func(*args, **kwargs)


def relayed(_: Inputs) -> int:
    with Mps():
        try:
            _steps(_relay())
        except RuntimeError as error:
            require("tensors are on mps and on cpu" in str(error), str(error))
        else:
            require(False, "stock relays tokens: no patch is needed")
        with on_mlx(PATCH):
            tokens = _steps(_relay())
            with mock.patch.dict(os.environ, {"SGLANG_USE_MLX": "0"}):
                buffer = _relay().output_tokens_buf
    require(tokens == [[11, 12], [7, 8, 11, 12]], str(tokens))
    require(isinstance(buffer, OnMps), "without MLX the relay has moved")
    return 2


def _relay() -> Any:
    pools = importlib.import_module("sglang.srt.mem_cache.memory_pool")
    rows = pools.ReqToTokenPool(size=8, max_context_len=16, device="cpu", enable_memory_saver=False)
    module = importlib.import_module("sglang.srt.managers.overlap_utils")
    return module.FutureMap("mps", speculation().NONE, rows)


def _steps(relay: Any) -> list[list[int]]:
    module = importlib.import_module("sglang.srt.managers.overlap_utils")
    two, tokens, none = torch.tensor([3, 5]), torch.tensor([11, 12]), speculation().NONE
    relay.publish(two, torch.tensor([4, 6]))
    payload = getattr(module, "RelayPayload", None)
    relay.stash(two, payload(bonus_tokens=tokens) if payload else tokens)
    given: list[dict[str, Any]] = [
        {"prefill_input_ids_cpu": None, "req_pool_indices": two},
        {"prefill_input_ids_cpu": torch.tensor([7, 8]), "mix_running_indices": two},
    ]
    kept = {"input_ids": None, "device": "cpu", "enable_overlap": False, "spec_algorithm": none}
    batches = [SimpleNamespace(**kept, **each) for each in given]
    for batch in batches:
        module.resolve_forward_inputs(batch, relay)
    return [batch.input_ids.tolist() for batch in batches]


CHECKS = {"relayed": relayed}
