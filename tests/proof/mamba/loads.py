"""States on their way from the host, as a hierarchical cache loads them: layer by layer.

The release's own counter says which layer has come. A GPU's stream, on which the loads are, can't
be here: what stands for it does a load when somebody waits for it, or at the very end.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sglang_perf_patches.verify.mamba.cases import Batch


class _Stream:
    """What was put on a stream, in order, and how much of it is done."""

    def __init__(self, paused: Callable[[], AbstractContextManager[None]]) -> None:
        self._paused = paused
        self.work: list[Callable[[], object]] = []
        self.done = 0

    def until(self, end: int) -> None:
        """Do what comes before."""
        with self._paused():
            while self.done < end:
                self.work[self.done]()
                self.done += 1


class _Event:
    """A place on the stream of loads; the current stream waits for it at once."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self.place = 0

    def record(self) -> None:
        self.place = len(self._stream.work)

    def query(self) -> bool:
        return self._stream.done >= self.place


@contextmanager
def loading(pool: Any, wanted: Batch, counter_of_waits: Any) -> Iterator[None]:
    """Within, the states of a batch's cached prefixes are still to be loaded into their slots.

    Until then the slots hold something else. The loads themselves are no waits of the host.
    """
    stream = _Stream(counter_of_waits.paused)
    current = SimpleNamespace(wait_event=lambda event: stream.until(event.place))
    device = SimpleNamespace(Event=lambda: _Event(stream), current_stream=lambda: current)
    controller = importlib.import_module("sglang.srt.managers.cache_controller")
    with mock.patch.object(controller, "device_module", device):
        counter = controller.LayerDoneCounter(len(pool.mamba_map))
        producer = counter.update_producer()
        for layer, place in enumerate(pool.mamba_map.values()):
            stream.work += _loads(pool, wanted, place)
            counter.events[producer].complete(layer)
        counter.set_consumer(producer)
        pool.register_layer_transfer_counter(counter)
        try:
            yield
        finally:
            stream.until(len(stream.work))
            pool.register_layer_transfer_counter(None)


def _loads(pool: Any, wanted: Batch, layer: int) -> list[Callable[[], object]]:
    """Copies of one layer's states, which are taken out of their slots until then."""
    cache = pool.mamba_pool.mamba_cache
    copies: list[Callable[[], object]] = []
    for row, request in enumerate(wanted.requests):
        if not request.cached:
            continue
        for states in (*cache.conv, cache.temporal):
            slot = states[layer, row + 1]
            true = slot.clone()
            slot.copy_(true.flip(-1) * 3)
            copies.append(partial(slot.copy_, true))
    return copies
