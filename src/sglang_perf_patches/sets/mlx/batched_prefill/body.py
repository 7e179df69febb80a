"""Computes prompts that wait together as rows of one pass, and checks that on untested devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ....model.patching import Patching
from ..device import attends_by_cudnn, is_proven
from ..references import MLX
from ..self_check import SelfCheck
from .passes import STEP, Group, Part, Prompt, Trial, compute, groups, is_recurrent

COUNTS: Counter[str] = Counter()
"""Counts for this process: prompts of a batch that were computed ``together`` or ``alone``, rows
that stock did not ask for (``unused``), ``trials`` of a group, whose prompts stock computes too,
and those that ``failed``."""

_NEAR = 13
"""In a trial, logits and KV may differ from stock's by so many roundings of the largest value: by
5 % in bfloat16. A tighter bound would refuse correct results, since each layer adds some: when only
the order of sums changed, as GPUs change it with a batch's shape, bfloat16 differed by up to 1 %
after 4 layers and 2.8 % after 28. One token too many, or a position too far, gave 80 % or more in
some layer."""

_NEAR_HYBRID = 52
"""The same for hybrids, with their states: 20 %. Rounding gave up to 8 % through 24 layers."""

_TRIES = 8  # groups of a kind that may be tried before stock keeps the kind

_ALIKE = 8
"""A prefix that has at most one in this many tokens of its prompt is computed again. Prompts that
have nothing else in common often share their first token."""


@dataclass(frozen=True)
class Noted:
    """A prompt that waits for the others of its batch; stands for its launch until then."""

    launch: Callable[[], Any]  # launches only this prompt, by stock's function
    req_id: str
    prefix_slots: Sequence[int]  # the pool's, of its first tokens, which stock would not compute
    tokens: Sequence[int]  # all of its tokens; empty if it must be launched by itself
    row: int  # in the pool of requests
    req: Any  # the scheduler's request, or None
    # What stock evaluates of it in the meantime: nothing.
    lazy_token: Any
    cache: tuple[Any, ...] = ()
    lazy_logprobs: Any = None


class Batches:
    """Computes the prompts of batches in groups, and hands each its row."""

    def __init__(self, patch: Patching) -> None:
        self._core: Any = patch.module("mlx.core")
        self._masks: Any = patch.module(f"{MLX}.kv_cache.attention_kv_cache")
        # Stock may not compute what a trial waits for: one try could leave a kind to it for good.
        self._check = SelfCheck(
            "mlx.batched-prefill", patch, needed=1, tries=_TRIES, until="this process ends"
        )
        self._ran, self._is_proven = patch.ran, is_proven(self._core)
        self._plans = attends_by_cudnn(self._core)
        self._rows: dict[str, Part] = {}  # of each request that was not launched yet
        self._trials: list[Trial] = []
        self._first: Part | None = None  # of the request that is being launched

    def launch(self, runner: Any, noted: Sequence[Noted]) -> list[Any]:
        """Launch noted prompts, in their order, those of like length computed together."""
        before = COUNTS["together"]
        try:
            if not self._check.is_over:
                self._compute(runner, [each for each in noted if each.tokens])
            launched = []
            for each in noted:
                row = self._rows.get(each.req_id)
                self._first = row and row.first
                launched.append(each.launch())
            for trial in self._trials:
                self._judge(runner, trial)
            return launched
        finally:
            COUNTS["unused"] += len(self._rows)
            COUNTS["alone"] += len(noted) - (COUNTS["together"] - before)
            self._rows.clear()
            self._trials.clear()
            self._first = None

    def first_part(self, input_ids: Any, cache: Sequence[Any]) -> Part | None:
        """A hybrid prompt up to where stock keeps its state, if computed."""
        first, self._first = self._first, None
        return first if first is not None and first.fits(input_ids, cache) else None

    @contextmanager
    def row_as_model(self, runner, req_id: str, input_ids, cache) -> Iterator[None]:
        """Give the runner the request's row as its model if it fits."""
        row, model = self._rows.get(req_id), runner.model
        if row is None or not row.fits(input_ids, cache):
            yield
            return
        del self._rows[req_id]
        if row.trial is None:
            COUNTS["together"] += 1
            self._ran.seen = True
        runner.model = partial(row.answer, model)
        try:
            yield
        finally:
            runner.model = model

    def _compute(self, runner: Any, noted: Sequence[Noted]) -> None:
        """Compute groups of prompts; what can't be computed is left to stock."""
        if len(noted) < 2:
            return
        layout, model = runner._cache_layout, type(runner.model).__module__
        cache = runner._new_cache_skeleton()
        if not all(is_recurrent(cache[layer]) for layer in layout.auxiliary_layer_indices):
            self._fail(f"the caches of {model} take no rows")
            return
        for chosen in groups([*filter(None, (self._prompt(runner, each) for each in noted))]):
            # cuDNN plans its attention for each new shape, which takes longer than prompts do.
            group = Group(chosen, rounds=self._plans)
            what = f"{group.sizes()}, {group.kind()}"
            # On an untested device each size is checked, elsewhere only each kind.
            kind = group.kind() if self._is_proven else what
            if any(trial.kind == kind for trial in self._trials):
                continue  # its verdict comes after this batch
            if self._check.may_try(kind):
                group.trial = Trial(kind, what, wanted=len(chosen) * len(group.passes))
            elif not self._check.has_passed(kind):
                continue
            try:
                rows = compute(self._core, self._masks, runner, group)
            except Exception as error:
                # A model's attention may not take rows that begin at different positions. Nothing
                # is launched yet, so stock computes all.
                self._fail(f"{what} of {model}: {error!r}")
                return
            self._rows.update(zip((each.request for each in chosen), rows, strict=True))
            if group.trial is not None:
                COUNTS["trials"] += 1
                self._trials.append(group.trial)

    def _judge(self, runner: Any, trial: Trial) -> None:
        """Let a kind of groups pass if stock's launches of its prompts gave nearly the same."""
        if trial.parts != trial.wanted:
            return  # stock did not compute the same parts, so nothing is known
        near = _NEAR_HYBRID if runner._cache_layout.has_auxiliary_state else _NEAR
        what = f"{trial.what} of {type(runner.model).__module__}, computed together,"
        try:
            is_near = trial.are_near(self._core, near)
        except Exception as error:
            self._fail(f"{what} can't be evaluated: {error!r}")
            return
        if is_near:
            self._check.credit(trial.kind)
        else:
            self._fail(f"{what} have other values than stock's on {self._core.default_device()}")

    def _fail(self, reason: str) -> None:
        """Leave everything to stock from now on."""
        COUNTS["failed"] += 1
        self._rows.clear()
        self._check.fail(reason)

    def _prompt(self, runner: Any, noted: Noted) -> Prompt | None:
        """A prompt with what its recurrent layers hold; None if stock must compute it."""
        layout, prefix, full = runner._cache_layout, len(noted.prefix_slots), len(noted.tokens)
        new = full - prefix
        if not new:
            return None
        cache, slots, first = runner._new_cache_skeleton(), noted.prefix_slots, 0
        if not layout.has_auxiliary_state:
            kept = 0 if prefix * _ALIKE <= new else prefix
            # Rounded down, so that rows with one prefix need no padding in front.
            slots = slots[: kept - kept % STEP if self._plans else kept]
        elif prefix and not runner._restore_auxiliary_state(noted.row, cache):
            return None  # Stock computes the prefix again.
        if not runner.disable_radix_cache:
            end = runner._select_auxiliary_state_track_len(
                prefix_len=prefix, new_token_count=new, full_len=full, req=noted.req
            )
            first = 0 if end is None or end == full else end - prefix
        return Prompt(
            request=noted.req_id,
            start=prefix,
            slots=slots,
            tokens=noted.tokens[len(slots) :],
            first=first,
            states={layer: tuple(cache[layer].cache) for layer in layout.auxiliary_layer_indices},
        )
