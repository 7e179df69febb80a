"""Where a hybrid's prompt goes on it has the state of its prefix, and slots are there for it.

The scheduler, the radix cache, the pools and MLX's part of them are the release's; see
`hybrid_server`. A stand-in for the model writes what tells the tokens that a state is of.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sglang_perf_patches.sets.mlx import hybrid_cache
from sglang_perf_patches.sets.mlx.hybrid_cache import STATES
from sglang_perf_patches.verify import Different, Inputs
from sglang_perf_patches.verify.comparing import live, require
from tests.proof.caches import component_module, unified_cache
from tests.proof.mamba.hybrid_parts import Shape, arguments, prefix_params
from tests.proof.mamba.hybrid_server import HybridServer, _ids, held, told

PATCH = "mlx.hybrid-cache"
NARROW = Shape("unified", tracked=False, slots=8, rows=2, overlap=False)
"""Four slots a request, as stock has them: cached states give way, and nothing is lost."""
WIDE = Shape("unified", tracked=False, slots=200, rows=4, overlap=False)
"""As many prefixes are found as there are."""
_MLX = "sglang.srt.hardware_backend.mlx"


class MlxServer(HybridServer):
    """A server with MLX's pool and component; `found` counts tokens of prefixes."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.found = 0
        self._begun: set[tuple[str, int]] = set()

    def _make_pool(self) -> Any:
        arguments(self.shape)
        importlib.import_module(f"{_MLX}.tp_worker")  # it imports all that the patch changes
        importlib.import_module("sglang.srt.model_executor.model_runner")
        self.states = importlib.import_module(STATES)
        return self.states.MlxAuxiliaryStateReqToTokenPool(
            size=self.shape.rows,
            max_context_len=self.shape.context,
            device="cpu",
            enable_memory_saver=False,
            auxiliary_state_size=self.shape.slots,
        )

    def _make_tree(self) -> Any:
        params = prefix_params(self.shape, self.pool, self.kv)
        kind = component_module().ComponentType.MAMBA
        params.component_registry_override = {kind: self.states.MlxAuxiliaryStateComponent}
        return unified_cache(params, "FULL", "MAMBA")

    def _forward(self, batch: Any) -> None:
        for row, req in enumerate(batch.reqs):
            start, count = batch.prefix_lens[row], batch.extend_lens[row]
            prefill = req.rid, req.retraction_count
            fresh = prefill not in self._begun  # else it is a further chunk
            self._begun.add(prefill)
            self.found += start * fresh
            self._goes_on(req, start, start + count)
            if fresh and count >= 64:
                self._track(req, start + count // 64 * 64)

    def _track(self, req: Any, length: int) -> None:
        """Keep the state at a prompt's last 64th token, as the runner does."""
        layout = SimpleNamespace(has_auxiliary_state=True, auxiliary_layer_indices=(0,))
        pool = self.pool.auxiliary_state_pool
        own = SimpleNamespace(_cache_layout=layout, _get_auxiliary_state_pool=lambda: pool)
        runner = importlib.import_module(f"{_MLX}.model_runner").MlxModelRunner
        states = [self._state(_ids(req)[:length])]
        runner._store_tracked_auxiliary_state(own, req, states, length)

    def _goes_on(self, req: Any, start: int, end: int, ids: Sequence[int] = ()) -> None:
        ids = ids or _ids(req)
        pool, slot = self.pool.auxiliary_state_pool, held(req).mamba_pool_idx
        cache = self._state([])
        there = pool.restore_cache(slot, [cache], (0,))
        if start and (not there or cache.state[0].item() != told(ids[:start])):
            raise Different(f"{req.rid} goes on after {start} tokens without their state")
        pool.store_cache(slot, [self._state(ids[:end])], (0,))

    def _state(self, ids: Any) -> Any:
        return SimpleNamespace(state=[self.states.mx.array([told(ids)])])

    def _token(self, req: Any) -> None:
        if len(req.output_ids) + 1 >= req.sampling_params.max_new_tokens:
            held(req).mamba_last_track_seqlen = None  # as MLX's worker does at a request's end
        super()._token(req)


def load(server: MlxServer, chance: Random, requests: int = 40) -> None:
    """Prompts that share prefixes; some are aborted, and some retracted."""
    begun = [[chance.randrange(3, 99) for _ in range(length)] for length in (70, 130, 300)]
    for _ in range(requests):
        kept = chance.choice(begun)
        ids = kept[: chance.randint(1, len(kept))]
        ids += [chance.randrange(3, 99) for _ in range(chance.randint(1, 90))]
        begun.append(ids)
        req = server.submit(ids, chance.randint(1, 6))
        for _ in range(chance.randint(0, 3)):
            server.step()
        if chance.random() < 0.1:
            server.abort(req)
        if chance.random() < 0.05:
            server.retract()
    server.drain()
    server.check_drained()


def stock(_: Inputs) -> int:
    try:
        load(MlxServer(WIDE), Random(1))
    except (AttributeError, AssertionError, Different):
        return 1
    raise Different("stock serves a hybrid: no patch is needed")


def little_memory(_: Inputs) -> int:
    """States that no request uses take as much memory as they may."""
    with on_mlx(PATCH), mock.patch.object(hybrid_cache, "MOST_BYTES", 40):
        server = MlxServer(WIDE)
        most = 0
        for number in range(30):
            server.submit([number + 3] * 100, 2)
            server.drain()
            most = max(most, int(server.tree.mamba_evictable_size()))
    # A running request's is not counted until it ends.
    require(most in {10, 11}, f"{most} states of 4 bytes are in 40 bytes")
    return 1


def no_slot_at_all(_: Inputs) -> int:
    """A running request whose state finds no slot in the cache is not cached."""
    with on_mlx(PATCH):
        server = MlxServer(WIDE)
        with mock.patch.object(type(server.slots), "fork_from", return_value=None):
            req = server.submit(list(range(3, 40)), 3)
            server.drain()
        require(len(req.output_ids) == 3, "the request has not ended")
    return 1


@contextmanager
def on_mlx(*patches: str, beside: tuple[str, ...] = ()) -> Iterator[None]:
    """Have patches live in a process of an MLX server."""
    with mock.patch.dict(os.environ, {"SGLANG_USE_MLX": "1"}), live(*patches, beside=beside):
        yield


def _loads(inputs: Inputs, shape: Shape) -> int:
    seeds = inputs(lambda chance: chance.randrange(1 << 30), 4)
    for seed in seeds:
        with on_mlx(PATCH):
            server = MlxServer(shape)
            load(server, Random(seed))
        require(server.found, "no prefix was found")
    return len(seeds)


CHECKS = {
    "stock dies": stock,
    "few slots": lambda inputs: _loads(inputs, NARROW),
    "many slots": lambda inputs: _loads(inputs, WIDE),
    "little memory": little_memory,
    "no slot at all": no_slot_at_all,
}
