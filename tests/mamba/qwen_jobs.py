"""What `on_release` plays of a multimodal hybrid model that is sent text."""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

from __future__ import annotations

import gc
import logging
import warnings
from contextlib import nullcontext
from random import Random
from typing import Any
from unittest import mock

from tests.proof import stubs

stubs.lend()
warnings.filterwarnings("ignore")
for name in ("sglang", "sglang_perf_patches"):
    logging.getLogger(name).setLevel(logging.CRITICAL)

import qwen_server

from sglang_perf_patches.sets.mamba.gdn_prefill_graph import prefill_tables
from sglang_perf_patches.verify.comparing import live, require_same
from sglang_perf_patches.verify.stock import publish_server as publish
from tests.proof.swa.window_server import WindowServer

GRAPH = "mamba.gdn-prefill-graph"
SLOTS = "mamba.slot-exhaustion"
BUCKETS = (8, 64)
_DRAW = Random(5)
_BASE = [_DRAW.randrange(3, 100) for _ in range(120)]
ROUNDS = (
    ((_BASE[:90], 3), (_BASE[90:97], 2)),
    # The prefix of the round before, whose state is cached, and a chunk of another request.
    ((_BASE[:100], 2), (_BASE[60:], 2)),
)
"""Of each round its prompts, and how many tokens they get: 2 chunks, 2 buckets, a cached prefix."""


def play(server: WindowServer) -> dict[str, Any]:
    for asked in ROUNDS:
        for ids, new in asked:
            server.submit(ids, new)
        server.serve()
    server.check_drained()
    cache = server.runner.req_to_token_pool.mamba_pool.mamba_cache
    return {
        "batches": server.batches,
        "tokens": {rid: server.tokens(rid) for rid in server.reqs},
        "logits": server.logits,
        "states": [held.clone() for held in (*cache.conv, cache.temporal)],
    }


def replies_of(*patches: str, buckets: tuple[int, ...] = BUCKETS, **asked: Any) -> dict[str, Any]:
    """What a server replies and computes, and the requests of each fill of the patch's tables."""
    qwen_server.lend()
    publish()
    on_tables = []
    fill = prefill_tables.Tables.fill

    def counted(self: Any, *given: Any) -> None:
        on_tables.append(len(given[0]))
        fill(self, *given)

    with (
        live(*patches) if patches else nullcontext(),
        mock.patch.object(prefill_tables.Tables, "fill", counted),
        qwen_server.served(buckets, **asked) as server,
    ):
        assert server.runner.model_config.is_multimodal
        assert type(server.runner.model).__name__ == "Qwen3_5MoeForConditionalGeneration"
        played = play(server)
        del server
    gc.collect()
    return {"played": played, "on tables": on_tables}


def replies() -> dict[str, Any]:
    """Batches, tokens and logits: eager, replayed by stock, and replayed from tables.

    Raises:
        Different: they are not the same in all bits.
    """
    eager = replies_of(buckets=())
    stock = replies_of()
    patched = replies_of(GRAPH, SLOTS)
    require_same("stock's graph", eager["played"], stock["played"])
    require_same("the patched graph", stock["played"], patched["played"])
    assert not stock["on tables"]
    prefills = [each for each in patched["played"]["batches"] if each[0] == "prefill"]
    assert any(sum(each[3]) for each in prefills), "no prefix was found again"
    return {
        "prefills": len(prefills),
        "buckets": len(BUCKETS),
        "on tables": len(patched["on tables"]),
        "rows": sum(map(len, patched["played"]["logits"].values())),
    }


def broken() -> str:
    """What the comparison says where the tables hold another batch's lengths."""
    fill = prefill_tables.Tables.fill

    def wrong(self: Any, lens: Any, prefixes: Any, *given: Any) -> None:
        fill(self, lens, [0 for _ in prefixes], *given)

    stock = replies_of()
    with mock.patch.object(prefill_tables.Tables, "fill", wrong):
        patched = replies_of(GRAPH)
    try:
        require_same("broken", stock["played"], patched["played"])
    except AssertionError as different:
        return str(different)
    return ""
