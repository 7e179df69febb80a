"""``mlx.batched-prefill``: prompts that wait together go through the model as rows of one pass.

Stock's worker launches the prompts of a batch one after the other. The patch lets it note them,
computes those of like length together, and then has stock's own function launch each: where that
calls the model, it gets its row. What stock does around the model stays, from tracking to sampling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ....model.patching import Patching, replaces
from ..device import attends_by_cudnn, is_proven
from ..references import MLX, RUNNER
from ..self_check import SelfCheck
from . import EXTEND_BATCH, TRUNK_FORWARD, hybrid
from .grouping import Prompt, Shape, groups, of_hybrids, shape
from .rows import Layer, Part, Row, compute, is_recurrent

COUNTS: Counter[str] = Counter()
"""Counts for this process: prompts of a batch that were computed ``together`` or ``alone``, rows
that stock did not ask for (``unused``), ``trials`` of a group, next to its single prompts, and
those that ``failed``."""

_NEAR = 0.05
"""In a trial, logits and KV may differ by this part of the largest. Rounding in bfloat16 gives
less, and a mistake in a mask or a position gives more."""

_NEAR_HYBRID = 0.2
"""The same for hybrids, with their states. Rounding gave up to 0.08 through 24 layers."""

_NOTED = "_sglang_perf_patches_noted"


@dataclass(frozen=True)
class Noted:
    """A prompt that waits for the others of its batch; stands for its launch until then.

    Attributes:
        launch: launches only this prompt, by stock's function.
        req_id: its request.
        prefix_slots: the pool's slots of its first tokens, which stock would not compute again.
        tokens: all of its tokens; empty if it must be launched by itself.
        row: its row in the pool of requests.
        req: the scheduler's request, or None.
        lazy_token: what stock evaluates of it in the meantime; so are the next two, nothing.
    """

    launch: Callable[[], Any]
    req_id: str
    prefix_slots: Sequence[int]
    tokens: Sequence[int]
    row: int
    req: Any
    lazy_token: Any
    cache: tuple[Any, ...] = ()
    lazy_logprobs: Any = None


def install(patching: Patching) -> None:
    """Install on releases from 0.5.18 on."""
    core: Any = patching.module("mlx.core")
    sampling: Any = patching.module(f"{MLX}.sampling")
    batches = _Batches(patching)
    patching.anytime("a batch's prompts are noted and launched within one call")

    @replaces(patching, EXTEND_BATCH)
    def async_extend_batch(self: Any, batch: Any, *, inner: Any) -> Any:
        """Launch a batch: continued and decoding requests at once, then the new prompts."""
        runner = self._mlx_runner
        vars(runner)[_NOTED] = []
        try:
            launch = inner(self, batch)
        finally:
            del vars(runner)[_NOTED]
        if not launch.prefills:
            return launch
        prefills = batches.launch(runner, launch.prefills)
        tokens = core.stack([each.lazy_token for each in (*prefills, *launch.extends)], axis=0)
        core.async_eval(
            tokens,
            runner.cache_state_arrays([each.cache for each in prefills]),
            [sampling.lazy_logprob_arrays(each.lazy_logprobs) for each in prefills],
        )
        return replace(launch, prefills=prefills, lazy_tokens=tokens)

    @replaces(patching, f"{RUNNER}.prefill_start")
    def prefill_start(
        self: Any, req_id: str, new: Any, full: Any, prefix_slots: Any, *more: Any, inner: Any
    ) -> Any:
        """Launch a prompt, or note it while its batch is launched."""
        launch = partial(inner, self, req_id, new, full, prefix_slots, *more)
        noted = vars(self).get(_NOTED)
        if noted is None:
            return launch()
        _, row, req, needs_logits, *_ = more
        tokens = [*full[: len(prefix_slots)], *new] if needs_logits else []
        if self._cache_layout.has_sliding_window_layers:
            prefix_slots = ()  # Stock keeps no KV of windows there, and computes all again.
        nothing = core.zeros((1,), core.uint32)
        noted.append(Noted(launch, req_id, prefix_slots, tokens, row, req, nothing))
        return noted[-1]

    @replaces(patching, f"{RUNNER}._forward_lazy_token")
    def forward_lazy_token(
        self: Any,
        input_ids: Any,
        cache: Any,
        needs_logits: bool,
        req_id: str,
        *more: Any,
        inner: Any,
    ) -> Any:
        """Choose a prompt's first token, from its row if it has one."""
        with batches.row_as_model(self, req_id, input_ids, cache):
            return inner(self, input_ids, cache, needs_logits, req_id, *more)

    @replaces(patching, TRUNK_FORWARD)
    def trunk_forward(self: Any, input_ids: Any, cache: Any, *, inner: Any) -> Any:
        """Compute a prompt up to where its state is kept, or fill in what was computed."""
        is_filled = batches.fill_first_part(input_ids, cache)
        return input_ids if is_filled else inner(self, input_ids, cache)  # nobody reads it


class _Batches:
    """Computes the prompts of batches in groups, and hands each its row."""

    def __init__(self, patching: Patching) -> None:
        self._core: Any = patching.module("mlx.core")
        caches: Any = patching.module(f"{MLX}.kv_cache.attention_kv_cache")
        self._make_mask = caches.make_attention_mask
        self._check = SelfCheck("mlx.batched-prefill", patching.gate)
        self._ran, self._is_proven = patching.ran, is_proven(self._core)
        self._plans = attends_by_cudnn(self._core)
        self._caches: Any = patching.module("mlx_lm.models.cache")
        self._rows: dict[str, Row] = {}
        self._launched: Part | None = None

    def launch(self, runner: Any, noted: Sequence[Noted]) -> list[Any]:
        """Launch noted prompts, in their order, those of like length computed together."""
        before = COUNTS["together"]
        try:
            if self._check.is_over:
                pass
            elif runner._cache_layout.has_auxiliary_state:
                self._compute_hybrids(runner, noted)
            else:
                prompts = [
                    Prompt(number, prefix := len(each.prefix_slots), len(each.tokens) - prefix)
                    for number, each in enumerate(noted)
                    if each.tokens
                ]
                for group in groups(prompts):
                    self._compute(runner, noted, group)
            launched = []
            for each in noted:
                self._launched = getattr(self._rows.get(each.req_id), "first", None)
                launched.append(each.launch())
            return launched
        finally:
            COUNTS["unused"] += len(self._rows)
            COUNTS["alone"] += len(noted) - (COUNTS["together"] - before)
            self._rows.clear()
            self._launched = None

    def fill_first_part(self, input_ids: Any, cache: Sequence[Any]) -> bool:
        """Fill a hybrid prompt's caches up to where stock keeps its state, if that is at hand."""
        first, self._launched = self._launched, None
        if first is None or not first.fits(input_ids, cache):
            return False
        first(input_ids, cache=cache)
        return True

    @contextmanager
    def row_as_model(
        self, runner: Any, req_id: str, input_ids: Any, cache: Sequence[Any]
    ) -> Iterator[None]:
        """Give the runner a request's row for a model, if it is what the model would compute."""
        row = self._rows.get(req_id)
        if row is None or not row.fits(input_ids, cache):
            yield
            return
        del self._rows[req_id]
        COUNTS["together"] += 1
        self._ran.seen = True
        model = runner.model
        runner.model = row
        try:
            yield
        finally:
            runner.model = model

    def _compute(self, runner: Any, noted: Sequence[Noted], group: Sequence[Prompt]) -> None:
        of = shape(group)
        prompts = [noted[each.number] for each in group]
        # cuDNN plans its attention for each new shape, which takes longer than the prompts do.
        of = of.rounded() if self._plans else of
        # On an untested device each kind of shape is checked, elsewhere only the first group.
        kind = "any" if self._is_proven else of.kind()
        self._keep(
            [each.req_id for each in prompts],
            lambda: self._forward(runner, prompts, of),
            (
                self._forward(runner, [prompt], shape([each]))[0]
                for each, prompt in zip(group, prompts, strict=True)
            ),
            (kind, of.kind(), type(runner.model).__module__),
            _NEAR,
        )

    def _keep(
        self,
        requests: Sequence[str],
        together: Callable[[], Sequence[Any]],
        singles: Iterable[Any],
        names: tuple[str, str, str],
        part: float,
    ) -> None:
        """Compute a group and keep its rows, if its kind has passed or passes now.

        Args:
            requests: of each row.
            together: computes all rows in one pass.
            singles: computes each row by itself, one after the other, only if asked.
            names: the group's kind for the check, the kind in words, and the model's module.
            part: of the largest value, by which a row may differ from itself computed singly.
        """
        kind, what, model = names
        is_tried = self._check.may_try(kind)
        if not is_tried and not self._check.has_passed(kind):
            return
        rows = together()
        if is_tried:
            COUNTS["trials"] += 1
            pairs = zip(rows, singles, strict=True)
            if not all(row.is_near(single, self._core, part) for row, single in pairs):
                self._fail(
                    f"{what} of {model}, computed together, have "
                    f"other values on {self._core.default_device()}"
                )
                return
            self._check.credit(kind)
        self._rows.update(zip(requests, rows, strict=True))

    def _fail(self, reason: str) -> None:
        """Leave everything to stock from now on."""
        COUNTS["failed"] += 1
        self._rows.clear()
        self._check.fail(reason)

    def _compute_hybrids(self, runner: Any, noted: Sequence[Noted]) -> None:
        """Compute groups of a hybrid model's prompts; what can't be computed is left to stock."""
        if sum(bool(each.tokens) for each in noted) < 2:
            return
        layout, model = runner._cache_layout, type(runner.model).__module__
        if not all(
            isinstance(of, self._caches.KVCache)
            if layer in layout.attention_layer_indices
            else is_recurrent(of)
            for layer, of in enumerate(runner._new_cache_skeleton())
        ):
            self._fail(f"the caches of {model} take no rows")
            return
        by_number = {
            number: prompt
            for number, each in enumerate(noted)
            if each.tokens and (prompt := self._hybrid(runner, each)) is not None
        }
        for group in of_hybrids(
            (number, each.prefix, len(each.tokens), each.first)
            for number, each in by_number.items()
        ):
            of, prompts = shape(group), [by_number[each.number] for each in group]
            ends = hybrid.kind(prompts, rounds=self._plans)
            last = Shape(of.rows, prompts[0].first, of.tokens - prompts[0].first)
            what = f"{of.kind()}, {ends}"
            kind = ends if self._is_proven else f"{what}, at last {last.kind()}"
            build = partial(
                hybrid.compute,
                *(self._core, self._caches, runner),
                attention=layout.attention_layer_indices,
            )
            try:
                self._keep(
                    [noted[each.number].req_id for each in group],
                    partial(build, prompts, rounds=self._plans),
                    (build([each], rounds=False)[0] for each in prompts),
                    (kind, what, model),
                    _NEAR_HYBRID,
                )
            except Exception as error:
                # A model's attention may not take rows that begin at different positions. Nothing
                # is launched yet, so stock computes all.
                self._fail(f"{what} of {model}: {error!r}")
                return

    def _hybrid(self, runner: Any, noted: Noted) -> hybrid.Prompt | None:
        """A hybrid model's prompt with what its layers hold; None if stock must compute it."""
        core, layout, prefix = self._core, runner._cache_layout, len(noted.prefix_slots)
        new = noted.tokens[prefix:]
        if not new:
            return None
        cache = runner._new_cache_skeleton()
        first, slots = 0, core.array(noted.prefix_slots, core.int32)
        if prefix and not runner._restore_auxiliary_state(noted.row, cache):
            return None  # Stock computes the prefix again.
        if not runner.disable_radix_cache:
            end = runner._select_auxiliary_state_track_len(
                prefix_len=prefix,
                new_token_count=len(new),
                full_len=len(noted.tokens),
                req=noted.req,
            )
            first = 0 if end is None or end == prefix + len(new) else end - prefix
        held: list[Sequence[Any]] = []
        for layer, of in enumerate(cache):
            if layer not in layout.attention_layer_indices:
                held.append(tuple(of.cache))
            elif prefix:
                both = _from_pool(runner, layer, slots)
                held.append([each.transpose(1, 0, 2)[None] for each in both])
            else:
                held.append(())
        return hybrid.Prompt(new, prefix, first, held)

    def _forward(self, runner: Any, prompts: Sequence[Noted], of: Shape) -> list[Row]:
        """The prompts' rows, of a forward pass of this shape."""
        filled = [*prompts, *[prompts[0]] * (of.rows - len(prompts))]
        layers = self._layers(runner, filled, of.prefix)
        tokens = [(len(each.prefix_slots), each.tokens) for each in filled]
        return compute(self._core, runner.model, layers, tokens, of.tokens)[: len(prompts)]

    def _layers(self, runner: Any, prompts: Sequence[Noted], prefix: int) -> list[Layer]:
        """Fresh layers for a group, with the first tokens of its prefixes from the pool."""
        core, indices = self._core, runner._cache_layout.attention_layer_indices
        if not prefix:
            return [Layer(core, self._make_mask, None) for _ in indices]
        first = [slot for each in prompts for slot in each.prefix_slots[:prefix]]
        slots = core.array(first, core.int32)

        def by_row(array: Any) -> Any:
            rows = array.reshape(len(prompts), prefix, *array.shape[1:])
            return rows.transpose(0, 2, 1, 3)

        layers = []
        for index in indices:
            keys, values = _from_pool(runner, index, slots)
            layers.append(Layer(core, self._make_mask, (by_row(keys), by_row(values))))
        return layers


def _from_pool(runner: Any, layer: int, slots: Any) -> Any:
    """A layer's keys and values in the pool's slots, each (slots, n_kv_heads, head_dim)."""
    pool_index = runner._cache_layout.full_kv_pool_index(layer)
    return runner._attention_kv_pool.get_kv(pool_index, slots)
