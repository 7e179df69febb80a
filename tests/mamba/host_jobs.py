"""A hybrid model's server with the hierarchical cache; `on_release` plays it."""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import gc
import os
from collections.abc import Callable
from typing import Any
from unittest import mock

from tests.proof import stubs

stubs.lend()

import sglang_perf_patches
from sglang_perf_patches.sets.mamba import host_states as body
from sglang_perf_patches.verify.comparing import live
from tests.proof.mamba import host_states as proof
from tests.proof.mamba import hosted_server
from tests.proof.mamba.hosted_server import Hosted, HostedServer

SERVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "served": ("190", {}),
    "by gigabytes": ("190", {"gigabytes": 84e-6}),
    "not told": ("", {}),
    "no number": ("many", {}),
    "zero": ("0", {}),
    "written back": ("190", {"policy": "write_back"}),
    "a direct copy": ("190", {"more": (("hicache_io_backend", "direct"),)}),
    "a small host": ("190", {"ratio": 0.7}),
    "layers of a third kind": ("190", {"kv_layer": 3}),
}
"""What an operator says, and the server."""


def parts() -> Any:
    return {part.__name__: part() for part in (gates, after_each_other)}


def gates() -> Any:
    reasons = {}
    for name, (expected, options) in SERVERS.items():
        with mock.patch.dict(os.environ, {body.VARIABLE: expected}):
            stock = _pools(options)
            sglang_perf_patches.activate(proof.PATCH)
            ours = _pools(options)
            state = sglang_perf_patches.activate(proof.PATCH).of(proof.PATCH)
            gc.collect()  # or the objects of this server keep the patch on
            sglang_perf_patches.deactivate()
        reasons[name] = {"same": ours == stock, "state": state.state, "reason": state.reason}
    return reasons


def _pools(options: dict[str, Any]) -> tuple[int, int]:
    shape = Hosted("unified", tracked=True, slots=9, tokens=64 * 40, rows=2, **options)
    return HostedServer(shape).host_pools()


def after_each_other() -> Any:
    """The pools of two servers that a process makes, and of each made alone."""
    asked: tuple[dict[str, Any], ...] = ({"ratio": 2.0}, {"ratio": 3.0})
    pools = []
    with proof.told(190):
        for servers in (asked, *((each,) for each in asked)):
            with live(proof.PATCH):
                pools.append([_pools(each) for each in servers])
    both, *alone = pools
    return [both, [pool for each in alone for pool in each]]


def broken() -> Any:
    """What the patch's own checks say of it with a part broken on purpose."""
    divided, plan = body.divided, body.plan

    def too_many(cells: Any, total: int, device: Any, tokens: int) -> Any:
        split = divided(cells, total, device, tokens)
        return split and body.Pools(split.states + 100, split.tokens)

    def too_few(cells: Any, total: int, device: Any, tokens: int) -> Any:
        return divided(cells, total, device, 3 * tokens)

    def no_less_than_nothing(cells: Any, total: int, _: Any, tokens: int) -> Any:
        return divided(cells, total, body.Pools(0, 0), tokens)

    def exchanged(*given: Any) -> Any:
        split = plan(*given)
        return split and split[::-1]

    breaks: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "more than stock has": (body, "divided", too_many),
        "too few states": (body, "divided", too_few),
        "less than the device has": (body, "divided", no_less_than_nothing),
        "exchanged": (body, "plan", exchanged),
        "other bytes of a state": (body, "state_bytes", lambda pool: 4),
        "other bytes of a token": (body, "kv_bytes", lambda pool: 4),
        "none is served": (body, "unserved", lambda *_: "no server"),
        # What the checks themselves look at.
        "no state comes back": (hosted_server, "_state_pairs", lambda *_: []),
        "no KV comes back": (hosted_server, "_kv_pairs", lambda *_: []),
    }
    errors = {}
    for name, (owner, function, wrong) in breaks.items():
        with mock.patch.object(owner, function, wrong):
            try:
                errors[name] = f"equal: {[check(_seeds) for check in proof.CHECKS.values()]}"
            except AssertionError as different:
                errors[name] = f"different: {different}"
    return errors


def _seeds(_draw: Any, count: int | None = None) -> list[int]:
    return list(range(count or 0))
