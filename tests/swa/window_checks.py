"""What `on_release` plays of swa.window-pool, in a process of its own: servers of small models."""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tests.proof import stubs

stubs.lend()
for name in ("sglang", "sglang_perf_patches"):
    logging.getLogger(name).setLevel(logging.CRITICAL)

import sglang_perf_patches
from prove import DEPTH, FULL_DEPTH, drawn
from sglang_perf_patches.live import engine
from sglang_perf_patches.sets.swa import window_pool as body
from sglang_perf_patches.sets.swa.pool_ratio import STOCK_RATIO
from sglang_perf_patches.verify.comparing import require_same
from sglang_perf_patches.verify.stock import publish_server as publish
from tests.proof.swa import window_loads
from tests.proof.swa import window_pool as proof
from tests.proof.swa.window_server import WindowServer, prepare

PATCH = "swa.window-pool"


@contextlib.contextmanager
def booted(selection: str, model: str = "gemma-3", **asked: Any) -> Iterator[WindowServer]:
    prepare()
    publish(max_running_requests=8)  # an earlier server of this process is over
    sglang_perf_patches.activate(selection)
    try:
        with contextlib.closing(WindowServer(model, **asked)) as server:
            yield server
    finally:
        sglang_perf_patches.deactivate()


def left_to_stock() -> dict[str, str]:
    """Each of these alone has stock's pools; why, as `status` says it."""
    alone: dict[str, tuple[str, dict[str, Any]]] = {
        "images": ("gemma-3-with-images", {"enable_multimodal": True}),
        "no pool": ("gemma-3", {"disable_hybrid_swa_memory": True}),
        "backend": ("gemma-3", {"attention_backend": "torch_native"}),
        "two backends": ("gemma-3", {"prefill_attention_backend": "triton"}),
        "windows alone": ("gemma-3", {"model_layer_types": ["sliding_attention"] * 6}),
        "both directions": ("gemma-3", {"model_use_bidirectional_attention": True}),
        "another model": ("llama", {}),
    }
    reasons = {}
    for name, (model, asked) in alone.items():
        with booted(PATCH, model, **asked) as server:
            assert not server.has_window_pool, name
            engine.look_again()
            report = engine.report()
            assert report is not None
            state = report.of(PATCH)
            wanted = "not needed" if model == "llama" else "gated"
            assert state.state == wanted, (name, state)
            reasons[name] = state.reason
    return reasons


def both_together() -> list[int]:
    """With swa.pool-ratio: the pools that its arithmetic wants, and the same tokens."""
    asked = {"max_total_tokens": 4096, "max_running_requests": 4, "chunked_prefill_size": 128}
    expected: Any = None
    sizes: list[int] = []
    for selection in ("none", PATCH, f"{PATCH},swa.pool-ratio"):
        with booted(selection, **asked) as server:
            window_loads.LONG.play(server)
            server.check_drained()
            tokens = {rid: server.tokens(rid) for rid in server.reqs}
            expected = tokens if expected is None else expected
            assert tokens == expected, selection
            sizes.append(getattr(server.runner, "swa_max_total_num_tokens", None) or 0)
    assert sizes[:2] == [0, int(4096 * STOCK_RATIO)], sizes
    assert 0 < sizes[2] < sizes[1], sizes
    return sizes


def refuses_images_in_prompts() -> None:
    """A model with an image tower that is served for text has no images in its requests."""
    with booted(PATCH, "gemma-3-with-images") as server:
        assert server.has_window_pool
        assert not server.runner.is_multimodal
        assert not server.scheduler.model_config.is_multimodal


def beams() -> list[Any]:
    """A request of three beams: how it ends on stock and with a window pool; what is logged."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    told: list[Any] = []
    logger, level = body.logger, body.logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        for selection in ("none", PATCH):
            with booted(selection) as server:
                ended: list[Any] = []
                kind = type(server.scheduler.output_streamer)

                def stream_output(self: Any, reqs: Any, *rest: Any, **more: Any) -> None:
                    ended.extend(req.finished_reason for req in reqs if req.finished())  # noqa: B023

                with mock.patch.object(kind, "stream_output", stream_output):
                    server.submit(window_loads.words(1, 20), 4, beam_width=3)
                    server.serve()
                server.check_drained()
                told.append([reason.to_json() for reason in ended])
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return [*told, [line for line in lines if "beam_width" in line]]


def pressed_hard(episodes: int) -> dict[str, int]:
    """Drawn loads in small pools; how many requests were served, retracted and had a prefix."""
    told = {"retracted": 0, "served": 0, "hits": 0}
    for load in drawn(window_loads.drawn, FULL_DEPTH * episodes // DEPTH):
        told["served"] += proof.pressed_one(load, told)
    return told


def broken() -> dict[str, str]:
    """What the checks say while something is broken in a way; "" if they pass."""
    prepare()
    publish()
    expected = proof._played("gemma-3", window_loads.LONG, {}, False)
    runner: Any = importlib.import_module("sglang.srt.model_executor.model_runner")
    window = runner.resolve_sliding_window_size
    breaks: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "full layers get the window": (body, "windowed_layers", lambda _: [1, 1, 1, 1, 1, 0]),
        "layers of the window are whole": (body, "windowed_layers", lambda _: [1, 0, 0, 1, 1, 0]),
        "layers change places": (body, "windowed_layers", lambda _: [0, 0, 1, 0, 0, 1]),
        "a part of the window is freed": (
            *(runner, "resolve_sliding_window_size"),
            lambda *args, **kwargs: window(*args, **kwargs) - 12,
        ),
    }
    said = dict.fromkeys(breaks, "")
    for how, change in breaks.items():
        try:
            with mock.patch.object(*change):
                if change[0] is runner:  # what is broken is stock's own, on both sides
                    proof.alike("gemma-3", window_loads.LONG)
                    continue
                with proof._patched():
                    patched = proof._played("gemma-3", window_loads.LONG, {}, True)
                    require_same(how, expected, patched)
        except Exception as error:
            said[how] = f"{type(error).__name__}: {error}"
    return said
