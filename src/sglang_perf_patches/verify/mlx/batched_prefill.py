"""Prompts of one batch get stock's logits, tokens and KV: bit-equal on a CPU, close elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import mlx.core as mx

from ...sets.mlx.batched_prefill.body import COUNTS
from ...sets.mlx.references import MLX
from .. import Inputs
from ..comparing import require, some
from ..stock import NoneByDefault
from . import models
from .cases import Step
from .equivalence import further_models, near, with_logits
from .models import RUNNER, Model
from .rig import Player

PATCH = "mlx.batched-prefill"

_CHUNK = 16  # a hybrid's state is kept behind a prompt's last whole chunk of so many tokens
_STATES = 512

Prompt = tuple[str, int, str, int]
"""A request's name, how many new tokens, and whose prefix from the pool, of how many tokens.

A hybrid model's prefix ends where a state of that request was kept.
"""

Batch = list[Prompt]
Batches = tuple[Batch, ...]

PART = 1 / 20  # of the largest logit, by which others may differ as the row count selects kernels

SCRIPTED: Batches = (
    [("a", 9, "", 0), ("b", 9, "", 0)],
    [("c", 40, "", 0), ("d", 38, "", 0), ("e", 33, "", 0), ("f", 200, "", 0)],
    # prefixes of one length, of another, and the whole prompt
    [("g", 5, "c", 30), ("h", 6, "d", 30), ("i", 6, "c", 17), ("j", 7, "f", 17), ("k", 0, "c", 40)],
    [("l", 30, "", 0)],
    [(name, 12, "", 0) for name in "mnopqrstuv"],
    # prefixes that are nearly of one length, and none
    [("w", 40, "c", 2), ("x", 40, "d", 1), ("y", 41, "", 0), ("z", 36, "f", 5)],
    [("A", 60, "f", 70), ("B", 66, "f", 64), ("C", 64, "f", 71), ("D", 20, "f", 99)],
)
"""Batches of prompts: name, new tokens, whose prefix from the pool, and how long it is."""


def full_attention(inputs: Inputs) -> int:
    """Scripted and drawn batches, with prefixes from the pool, then decoded together."""
    return same_prompts("float32", [SCRIPTED, *inputs(random_batches)])


def other_weights(inputs: Inputs) -> int:
    """In bfloat16 and in 4 bits."""
    chosen = some(inputs, [False, True])
    return sum(same_prompts("bfloat16", [SCRIPTED], quantized=each) for each in chosen)


def windows(inputs: Inputs) -> int:
    """A model with sliding windows, which computes prefixes again."""
    if "gpt_oss" not in further_models():
        return 0
    return same_prompts("float32", [SCRIPTED, *inputs(random_batches)[:1]], name="gpt_oss")


def recurrent(inputs: Inputs) -> int:
    """A hybrid model, whose prompts continue from the states of their prefixes."""
    return same_prompts("float32", [SCRIPTED, *inputs(random_batches)[:1]], name="qwen3_next")


def random_batches(chance: Random, *, hits: bool = True) -> Batches:
    """Batches of unequal prompts; with `hits` some have prefixes that earlier ones left."""
    batches: list[Batch] = []
    held: list[tuple[str, int]] = []
    for number in range(4):
        batch: Batch = []
        like = chance.choice((3, 17, 60, 130))
        prefix = chance.randint(1, like)
        for at in range(chance.randint(1, 10)):
            name, new = f"r{number}.{at}", max(1, round(like * chance.uniform(0.6, 1.2)))
            hit = prefix + chance.choice((0, 0, 1, 3))
            donors = [donor for donor, length in held if length >= hit]
            if donors and hits and chance.random() < 0.5:
                batch.append((name, new, chance.choice(donors), hit))
            else:
                batch.append((name, new, "", 0))
        held += [(name, new) for name, new, donor, _ in batch if not donor]
        batches.append(batch)
    return tuple(batches)


def same_prompts(
    dtype: str,
    drawn: Sequence[Batches],
    *,
    name: str = "qwen3",
    quantized: bool = False,
    **options: bool,
) -> int:
    """Play batches on stock and patched; compare, and see that prompts were computed together."""
    COUNTS.clear()
    # Stock serves the first group of each kind, which is tried, so the first batches come twice.
    drawn = [drawn[0], *drawn]
    with models.model(name, dtype, quantized=quantized) as model:
        near(PATCH, model, lambda: [play(model, batches, **options) for batches in drawn], PART)
    require(COUNTS["together"], f"{PATCH}: {dict(COUNTS)}")
    require(not COUNTS["unused"] and not COUNTS["failed"], f"{PATCH}: {dict(COUNTS)}")
    return len(drawn)


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
    """A player with stock's worker, which launches batches of prompts on this player's runner.

    What the scheduler would hand over, a batch and its requests, is made here, with the fields that
    the worker reads on each release.
    """

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


CHECKS = {
    "full attention": full_attention,
    "other weights": other_weights,
    "windows": windows,
    "recurrent states": recurrent,
}
