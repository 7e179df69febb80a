"""FlashInfer's own plan of a verify, stock's call beside the patch's.

``python wheel_plan.py WHEEL``: the folder of an unpacked ``flashinfer-python``. The Python half of
its plan runs on a CPU, with PyTorch and this project's ``src`` on PYTHONPATH. Stand-ins replace the
rest of the wheel, which needs a GPU: its C++ half keeps what it is planned with, and NumPy packs
the mask. It fails where a graph's buffers or the arguments of the C++ half differ in a bit.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from sglang_perf_patches.sets.mla import flashinfer_verify_plan

CASES = ((3, [40, 7]), (8, [110, 1, 64]), (1, [1]), (4, [33] * 6))
"""Draft tokens, and prefix lengths."""

PACKER = "sglang_perf_patches.sets.mla.packed_masks"
MOST = 4096


def main(wheel: str) -> None:
    """Compare each case."""
    module = prefill(wheel)
    planned: list[Any] = []
    module.get_batch_prefill_module = lambda *_: SimpleNamespace(
        plan=lambda *given: planned.append([_cloned(part) for part in given[3:]])
    )
    for draft, lengths in CASES:
        stock = plan(module, planned, draft, lengths, patched=False)
        found = plan(module, planned, draft, lengths, patched=True)
        assert len(stock) == len(found)
        for one, other in zip(stock, found, strict=True):
            assert _equal(one, other), (draft, lengths, one, other)
    print(f"{wheel}: {len(CASES)} plans are equal")


def plan(module: Any, planned: list[Any], draft: int, lengths: list[int], patched: bool) -> Any:
    """Plan as a capture does, then as a replay; what the kernel gets from the latter."""
    bs = len(lengths)
    wrapper = module.BatchPrefillWithPagedKVCacheWrapper(
        torch.zeros(1 << 20, dtype=torch.uint8),
        "NHD",
        use_cuda_graph=True,
        backend="fa2",
        qo_indptr_buf=torch.zeros(bs + 1, dtype=torch.int32),
        paged_kv_indptr_buf=torch.zeros(bs + 1, dtype=torch.int32),
        paged_kv_indices_buf=torch.zeros(MOST, dtype=torch.int32),
        paged_kv_last_page_len_buf=torch.ones(bs, dtype=torch.int32),
        custom_mask_buf=torch.zeros(MOST, dtype=torch.uint8),
        mask_indptr_buf=torch.zeros(bs + 1, dtype=torch.int32),
    )
    given, named = arguments(draft, [1] * bs)
    wrapper.begin_forward(*given, **named)
    planned.clear()
    given, named = arguments(draft, lengths)
    if patched:
        ran = SimpleNamespace(seen=False)
        ours = flashinfer_verify_plan._Known(wrapper, torch.tensor(lengths), draft, ran)
        pinned = flashinfer_verify_plan.Pinned()
        with flashinfer_verify_plan._planned_by(wrapper, ours, pinned):
            wrapper.begin_forward(*given, **named)
        assert ran.seen, "the plan did not ask for the copies on the host"
    else:
        wrapper.begin_forward(*given, **named)
    (arguments_of_kernel,) = planned
    starts = wrapper._mask_indptr_buf
    buffers = [wrapper._qo_indptr_buf, wrapper._paged_kv_indptr_buf, wrapper._paged_kv_indices_buf]
    return [*arguments_of_kernel, *buffers, starts, wrapper._custom_mask_buf[: int(starts[-1])]]


def arguments(draft: int, lengths: list[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What sglang plans a verify of these prefix lengths with, and a random mask."""
    noise = torch.Generator().manual_seed(sum(lengths))
    whole = torch.tensor(lengths) + draft
    qo_indptr = torch.arange(0, (len(lengths) + 1) * draft, draft, dtype=torch.int32)
    kv_indptr = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    kv_indptr[1:] = whole.cumsum(0)
    indices = torch.randint(0, 99, (int(kv_indptr[-1]),), generator=noise, dtype=torch.int32)
    last = torch.ones(len(lengths), dtype=torch.int32)
    mask = torch.rand(int((whole * draft).sum()) + 5, generator=noise) < 0.6
    named = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16, "custom_mask": mask}
    return (qo_indptr, kv_indptr, indices, last, 4, 2, 64, 1), {**named, "non_blocking": True}


def prefill(wheel: str) -> Any:
    """The wheel's module of prefill wrappers, with stand-ins for all others."""
    package: Any = ModuleType("flashinfer")
    package.__path__ = [f"{wheel}/flashinfer"]
    sys.modules["flashinfer"] = package
    sys.meta_path.insert(0, _StandIns())
    empty = torch.empty
    torch.empty = lambda *given, pin_memory=False, **named: empty(*given, **named)
    module: Any = importlib.import_module("flashinfer.prefill")
    module.get_seq_lens = lambda ends, last, page: (ends[1:] - ends[:-1] - 1) * page + last
    module.segment_packbits = _segments
    packer: Any = importlib.import_module(PACKER)
    packer.pack = _pack
    return module


def _segments(mask: Any, ends: Any, bitorder: str) -> tuple[Any, Any]:
    assert bitorder == "little"
    parts = [_bits(mask[a:b]) for a, b in itertools.pairwise(ends)]
    starts = np.cumsum([0, *map(len, parts)])
    return torch.cat(parts), torch.tensor(starts, dtype=torch.int32)


def _pack(mask: Any, starts: Any, packed: Any, most: int) -> None:
    assert most == int((starts[0, 1:] - starts[0, :-1]).max())
    for request in range(starts.shape[1] - 1):
        bits = _bits(mask[starts[0, request] : starts[0, request + 1]])
        at = int(starts[1, request])
        packed[at : at + len(bits)] = bits


def _bits(cells: Any) -> Any:
    return torch.from_numpy(np.packbits(cells.numpy().astype(np.uint8), bitorder="little"))


def _cloned(part: Any) -> Any:
    return part.clone() if hasattr(part, "clone") else part


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def _decorator(*given: Any, **named: Any) -> Any:
    """In place of a name of the wheel: a decorator, with or without arguments."""
    if len(given) == 1 and callable(given[0]) and not named:
        return given[0]
    return lambda function=None, *_, **__: function


_KNOWN = {
    "canonicalize_torch_dtype": lambda dtype: dtype,
    "PosEncodingMode": {"NONE": SimpleNamespace(value=0)},
    "MaskMode": SimpleNamespace(
        **{
            name: SimpleNamespace(value=value)
            for value, name in enumerate(("NON_CAUSAL", "CAUSAL", "CUSTOM", "MULTIITEMSCORING"))
        }
    ),
    "TensorLayout": {"NHD": SimpleNamespace(value=0)},
    "get_compute_capability": lambda *_: (9, 0),
    "_is_nvfp4_kv_dtype": lambda *_: False,
    "_LazyPagedKVStrideModule": object,
}


class _Module(ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _KNOWN.get(name, _decorator)


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        if name.startswith("flashinfer.") and name != "flashinfer.prefill":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute."""


if __name__ == "__main__":
    main(sys.argv[1])
