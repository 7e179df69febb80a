"""Plays batches of prompts on stock sglang's MLX worker, which launches them together.

The worker and its runner are stock's. What the scheduler would hand over, a batch and its requests,
is made here, with the fields that the worker reads on each release.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import mlx.core as mx

from ...sets.mlx.references import MLX
from ..stock import NoneByDefault
from .cases import Step
from .equivalence import with_logits
from .models import RUNNER, Model
from .rig import Player

_CHUNK = 16  # a hybrid's state is kept behind a prompt's last whole chunk of so many tokens
_STATES = 512

Prompt = tuple[str, int, str, int]
"""A request's name, how many new tokens, and whose prefix from the pool, of how many tokens.

A hybrid model's prefix ends where a state of that request was kept.
"""

Batch = list[Prompt]
Batches = tuple[Batch, ...]


def play(
    model: Model, batches: Batches, *, radix: bool = True, sampling: bool = False
) -> tuple[dict[str, Any], list[mx.array]]:
    """Each batch's launch, two decode steps and end on a fresh worker: `Played`, and all logits."""
    steps: list[Step] = []
    for batch in batches:
        names = [name for name, *_ in batch]
        steps += [("launch", batch), ("decode", names, 2), *(("leave", name) for name in names)]
    return with_logits(_BatchPlayer(model, radix=radix, sampling=sampling), steps)


class _BatchPlayer(Player):
    """A player with stock's worker, which has this player's runner."""

    def __init__(self, model: Model, **options: Any) -> None:
        super().__init__(model, **options)
        self._torch: Any = import_module("torch")
        self._worker: Any = object.__new__(import_module(f"{MLX}.tp_worker").MlxTpModelWorker)
        self._worker._mlx_runner = self.runner
        self._worker._mlx_active_rids = set()
        self._worker._req_retraction_count = {}
        # It asks the server's arguments, which there are none of: no grammars, biases or logprobs.
        self._worker._sampling_active = lambda _: False
        self._kept: dict[str, tuple[int, Any]] = {}
        self._states: Any = None
        pool: Any = self._pool
        if pool is not None and self.runner._cache_layout.has_auxiliary_state:
            states = import_module(f"{MLX}.kv_cache.auxiliary_state")
            pool.auxiliary_state_pool = self._states = states.MlxAuxiliaryStatePool(_STATES, "cpu")
            pool.get_auxiliary_state_indices = _state_of
        self._worker._model_runner = SimpleNamespace(req_to_token_pool=pool)

    def launch(self, batch: Sequence[Prompt]) -> None:
        """Prefill the prompts of a batch in one launch, and wait for their first tokens."""
        requests, new_tokens, new_slots = [], [], []
        for name, further, donor, prefix in batch:
            tokens, slots = self._donated[donor] if donor else ([], [])
            if self._states is not None:  # A hit ends where a state was kept.
                prefix, state = self._kept.get(donor, (0, None))
            new = self._words(f"{name}{further}", further)
            prompt = [*tokens[:prefix], *new]
            self._held[name] = len(prompt)
            row, own = self._open(name, prompt, slots[:prefix])
            if self._states is not None and prefix:
                self._states.copy_from(state, _state_of(row))
            requests.append(self._request(name, prompt, slots[:prefix], row))
            new_tokens += new
            new_slots += own or [0] * further
        stock = NoneByDefault(
            reqs=requests,
            input_ids=self._torch.tensor(new_tokens, dtype=self._torch.int64),
            out_cache_loc=self._torch.tensor(new_slots, dtype=self._torch.int64),
            extend_lens=[further for _, further, _, _ in batch],
            return_logprob=False,
            has_grammar=False,
        )
        runner = import_module(RUNNER)
        with mock.patch.object(runner, "mamba_cache_chunk_size", return_value=_CHUNK, create=True):
            launched = self._worker._async_extend_batch(stock)
        self._worker.finalize_mlx_result(launched, requests)
        for request in requests:
            if request.mamba_last_track_seqlen is not None:
                state = request.mamba_ping_pong_track_buffer[0]
                self._kept[request.rid] = request.mamba_last_track_seqlen, state

    def _request(self, name: str, prompt: list[int], prefix: list[int], row: int) -> Any:
        chance = {"temperature": 0.9, "top_k": 20, "top_p": 0.9}
        greedy = {"temperature": 0.0, "top_k": 1, "top_p": 1.0}
        sampled = SimpleNamespace(
            **(chance if self._is_sampling else greedy),
            min_p=0.0,
            sampling_seed=self._words(name, 1)[0],
            frequency_penalty=0.0,
            presence_penalty=0.0,
            repetition_penalty=1.0,
            min_new_tokens=0,
        )
        request = NoneByDefault(
            rid=name,
            retraction_count=0,
            prefix_indices=self._torch.tensor(prefix, dtype=self._torch.int64),
            prefix_len=len(prefix),
            req_pool_idx=row,
            full_untruncated_fill_ids=prompt,
            get_fill_ids=lambda: prompt,
            sampling_params=sampled,
        )
        request.kv = request  # Newer releases hold a request's slots in a record of its own.
        return request


def _state_of(row: int) -> int:
    """The slot of a request's state: the last ones, as kept states take the first."""
    return _STATES - row
