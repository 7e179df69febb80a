"""Real models behind a real scheduler compute the same with a window pool as without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any

from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import live, require, require_same, some
from sglang_perf_patches.verify.stock import publish_server as publish
from tests.proof.swa import window_loads
from tests.proof.swa.window_models import GEMMA_3
from tests.proof.swa.window_server import WindowServer, prepare

PATCH = "swa.window-pool"

BOOTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gemma-3", {}),
    ("gemma-3", {"page_size": 64, "disable_overlap_schedule": False}),
    ("gemma-3-with-images", {"disable_overlap_schedule": False}),
    ("gemma-2", {}),
    ("exaone-4", {}),
    ("olmo-3", {}),
)
"""Models and servers. FlashAttention's backend runs with a stand-in for its kernel."""

TRITON = (("gemma-3", 1), ("gemma-3", 64))
"""Models and pages that Triton's interpreter plays, which is slow."""


def rooms(inputs: Inputs) -> int:
    """Where both pools have room: every step's batch, and every logit, bit by bit."""
    boots = [*BOOTS[:2], *some(inputs, BOOTS[2:])]
    return sum(alike(model, window_loads.LONG, **asked) for model, asked in boots)


def kernels(inputs: Inputs) -> int:
    """The same with Triton's own kernels, and a shorter load."""
    layers = {"model_num_hidden_layers": 3, "model_layer_types": GEMMA_3["layer_types"][:3]}
    asked = {"attention_backend": "triton", **layers}
    pairs = some(inputs, TRITON)
    return sum(alike(model, window_loads.SHORT, page_size=page, **asked) for model, page in pairs)


def pressed(inputs: Inputs) -> int:
    """Drawn loads that pools are too small for: retracted, evicted, hit, aborted, all right."""
    return sum(pressed_one(load) for load in inputs(window_loads.drawn))


def alike(model: str, load: window_loads.Load, **asked: Any) -> int:
    """A load on stock and with the patch; how many rows of logits are equal."""
    where = f"{PATCH}, {model}, {asked}"
    played = []
    for patched in (False, True):
        with _patched() if patched else nullcontext():
            played.append(_played(model, load, asked, patched))
    require_same(where, *played)
    return sum(map(len, played[0]["logits"].values()))


@contextmanager
def _patched() -> Iterator[None]:
    """Have the patch live, in a process in which no server of another kind is published."""
    prepare()
    publish()
    with live(PATCH):
        yield


def _played(
    model: str, load: window_loads.Load, asked: dict[str, Any], patched: bool
) -> dict[str, Any]:
    with closing(WindowServer(model, **asked)) as server:
        require(server.has_window_pool == patched, f"{model}: window pool {not patched}")
        if patched:
            layers = sorted(server.runner.model_config.swa_attention_layer_ids)
            require_same(f"{model}, layers", server.windowed_layers(), layers)
        load.play(server)
        server.check_drained()
        return {
            "batches": server.batches,
            "tokens": {rid: server.tokens(rid) for rid in server.reqs},
            "logits": server.logits,
        }


def pressed_one(load: window_loads.Pressed, counts: dict[str, int] | None = None) -> int:
    """How many requests of a drawn load small pools serve, patched, as each alone on stock."""
    with _patched(), closing(WindowServer("gemma-3", **load.server)) as server:
        load.play(server)
        server.check_drained()
        replies = {rid: server.tokens(rid) for rid in server.reqs}
        if counts is not None:
            counts["retracted"] += server.retractions
            counts["hits"] += sum(server.cached(rid) > 0 for rid in server.reqs)
    with closing(WindowServer("gemma-3", **load.alone)) as alone:
        expected = load.answers(alone)
    for rid, tokens in replies.items():
        whole = expected[rid]
        if int(rid[1:]) in load.aborted:
            whole = whole[: len(tokens)]
        require_same(f"{PATCH}, {load!r}, {rid}", whole, tokens)
    lost = expected.keys() - replies.keys() - {f"r{number}" for number in load.aborted}
    require(not lost, f"{PATCH}, {load!r}: {lost} were never served")
    return len(replies)


CHECKS = {"rooms": rooms, "kernels": kernels, "pressed": pressed}
