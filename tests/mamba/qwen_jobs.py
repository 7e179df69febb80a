"""What `on_release` plays of a multimodal hybrid model that is sent text."""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import gc
import logging
from contextlib import nullcontext
from random import Random
from typing import Any
from unittest import mock

from tests.proof import stubs

stubs.lend()
for name in ("sglang", "sglang_perf_patches"):
    logging.getLogger(name).setLevel(logging.CRITICAL)

import qwen_server

from sglang_perf_patches.live import published
from sglang_perf_patches.model.setups import FEATURES
from sglang_perf_patches.sets.mamba.gdn_prefill_graph import prefill_tables
from sglang_perf_patches.verify.comparing import live, require_same
from sglang_perf_patches.verify.stock import publish_server as publish
from tests.proof.swa.window_server import WindowServer, checksum

GRAPH = "mamba.gdn-prefill-graph"
SLOTS = "mamba.slot-exhaustion"
BUCKETS = (8, 64)
_DRAW = Random(5)
BASE = [_DRAW.randrange(3, 100) for _ in range(120)]
ROUNDS = (
    ((BASE[:90], 3), (BASE[90:97], 2)),
    # The prefix of the round before, whose state is cached, and a chunk of another request.
    ((BASE[:100], 2), (BASE[60:], 2)),
)
"""Of each round its prompts, and how many tokens they get: 2 chunks, 2 buckets, a cached prefix."""
SERVERS: dict[str, dict[str, Any]] = {
    "no-radix-cache mixed-chunks": {"disable_radix_cache": True, "enable_mixed_chunk": True},
    "tracked-states sessions priorities": {
        "mamba_radix_cache_strategy": "extra_buffer",
        "enable_streaming_session": True,
        "enable_priority_scheduling": True,
    },
}
"""By the features that they have on, as `model.setups` names them."""
_START, _END = (qwen_server.MODEL[f"vision_{end}_token_id"] for end in ("start", "end"))
_IMAGE = [_START, *[qwen_server.IMAGE] * 4, _END]
_SEEN = [*BASE[:9], *_IMAGE, *BASE[9:60]]
WITH_IMAGE = (((BASE[:100], 3), (_SEEN, 3)), (([*_SEEN, *BASE[60:110]], 3),))
"""Text beside a prompt with an image, whose prefix is found again."""


def play(server: WindowServer) -> dict[str, Any]:
    for asked in ROUNDS:
        # The shortest first: its tokens are decoded while the chunks of the others come.
        for ids, new in sorted(asked, key=lambda each: len(each[0])):
            server.submit(ids, new, images=qwen_server.images_in(ids))
        server.serve()
    server.check_drained()
    cache = server.runner.req_to_token_pool.mamba_pool.mamba_cache
    return {
        "batches": server.batches,
        "tokens": {rid: server.tokens(rid) for rid in server.reqs},
        "logits": server.logits,
        "states": [held.clone() for held in (*cache.conv, cache.temporal)],
    }


def computed(server: WindowServer) -> dict[str, Any]:
    """What a rank computes of the same: bits of logits and states as a checksum of each."""
    played = play(server)
    assert all(row.isfinite().all() for rows in played["logits"].values() for row in rows)
    return {
        **played,
        "logits": {rid: [*map(checksum, rows)] for rid, rows in played["logits"].items()},
        "states": [*map(checksum, played["states"])],
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
    """Equal batches, tokens and logits: eager, replayed by stock, and replayed from tables."""
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


def with_features(names: str) -> dict[str, Any]:
    """What `SERVERS` has by those names: eager, and equally replayed from tables."""
    return like_eager(**SERVERS[names])


def with_images() -> dict[str, Any]:
    with mock.patch(f"{__name__}.ROUNDS", WITH_IMAGE):
        return like_eager()


def like_eager(**asked: Any) -> dict[str, Any]:
    eager = replies_of(buckets=(), **asked)
    patched = replies_of(GRAPH, **asked)
    require_same("the patched graph", eager["played"], patched["played"])
    played = patched["played"]
    prefills = [each for each in played["batches"] if each[0] == "prefill"]
    return {
        "cached": sum(sum(each[3]) for each in prefills),
        "on": sorted(FEATURES.of(published.published())),
        "prefills": len(prefills),
        "on tables": len(patched["on tables"]) - len(BUCKETS),
        "decodes": len(played["batches"]) - len(prefills),
        "tokens": sum(map(len, played["tokens"].values())),
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
