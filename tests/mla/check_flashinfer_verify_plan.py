"""A replayed FlashInfer verify copies nothing from the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sglang_perf_patches.proof.comparing import live
from sglang_perf_patches.proof.mla.flashinfer_verify_plan import EDGES, MODULE, PATCH, verify
from sglang_perf_patches.sets.mla import flashinfer_verify_plan as patch


def run() -> None:
    """Count the copies of replayed and of eager verifies, and of those that stock keeps."""
    plain = EDGES[0]
    plan = getattr(MODULE, "fast_prefill_plan", None)
    with live(PATCH):
        with fetched() as counted:
            verify(plain)
        assert counted == ["capture"], counted
    with fetched() as counted:
        verify(plain)
    assert counted == ["capture", "replay", "replay"], counted
    for left in ({"graph": False}, {"host": False}):
        with live(PATCH, ran=False):
            verify({**plain, **left})
    packs = "uniform_verify_width" in (getattr(plan, "__kwdefaults__", None) or {})
    if packs:
        kv = patch._kv
        patch._kv = lambda _: "torch.float4_e2m1fn_x2"
        try:
            with live(PATCH, ran=False):
                verify(plain)
        finally:
            patch._kv = kv
    for name, value in (("dispatch_reason", "window"), ("prefill_backend", "fa3")):
        wrapper = patch._wrapper
        patch._wrapper = changed(wrapper, name, value)
        try:
            with live(PATCH, ran=False), fetched() as counted:
                verify(plain)
            assert counted == ["capture", "replay", "replay"], (name, counted)
        finally:
            patch._wrapper = wrapper


def changed(ask: Any, name: str, value: Any) -> Any:
    """`ask`, of a backend whose attribute has another value while it is asked."""

    def asked(backend: Any, batch: Any) -> Any:
        kept = getattr(backend, name)
        setattr(backend, name, value)
        try:
            return ask(backend, batch)
        finally:
            setattr(backend, name, kept)

    return asked


@contextmanager
def fetched() -> Iterator[list[str]]:
    """For each plan that copies its three tensors to the host, in which phase it did."""
    counted: list[str] = []
    kind = MODULE.BatchPrefillWithPagedKVCacheWrapper
    stock, to = kind.plan, torch.Tensor.to

    def plan(self: Any, *given: Any, **named: Any) -> None:
        copies: list[Any] = []

        inside = [False]

        def copying(tensor: torch.Tensor, *where: Any, **how: Any) -> torch.Tensor:
            if where == ("cpu",) and not inside[0]:
                copies.append(tensor.shape)
            kept, inside[0] = inside[0], True  # the mode asks for the method again
            try:
                return to(tensor, *where, **how)
            finally:
                inside[0] = kept

        torch.Tensor.to = copying  # type: ignore[method-assign]
        try:
            stock(self, *given, **named)
        finally:
            torch.Tensor.to = to  # type: ignore[method-assign]
        assert len(copies) in {0, 3}, copies
        if copies:
            counted.append("replay" if counted else "capture")

    kind.plan = kind.begin_forward = plan
    try:
        yield counted
    finally:
        kind.plan = kind.begin_forward = stock
