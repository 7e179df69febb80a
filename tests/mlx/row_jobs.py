"""What is computed of the rows of a batch: `mlx.length-groups` and the patches of prefills."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

import mlx.core as mx
from job_tools import counts_each_layer, played, verdict_of
from mlx_lm.models.cache import ArraysCache

from sglang_perf_patches.live.memory import Patching
from sglang_perf_patches.sets.mlx import first_buffer, grouping, last_row, trunk
from sglang_perf_patches.sets.mlx.batched_prefill import body as batched_prefill
from sglang_perf_patches.sets.mlx.batched_prefill import passes
from sglang_perf_patches.sets.mlx.batched_prefill.passes import Group
from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
from sglang_perf_patches.sets.mlx.kv_arena.arena import Arenas
from sglang_perf_patches.sets.mlx.kv_arena.step import Step
from sglang_perf_patches.sets.mlx.pool_write import body as pool_write
from sglang_perf_patches.verify import Different, Missing
from sglang_perf_patches.verify.mlx import batched_prefill as prompts
from sglang_perf_patches.verify.mlx import cases, equivalence, length_groups, models, rig
from sglang_perf_patches.verify.mlx import first_buffer as buffer
from sglang_perf_patches.verify.mlx import last_row as row
from sglang_perf_patches.verify.mlx import pool_write as pool
from sglang_perf_patches.verify.mlx.batched_prefill import play


def broken_groups() -> dict[str, Any]:
    build, masks_of, init = Arenas.build, Step._masks_of, Step.__init__
    arenas_for = kv_arena.Choice.arenas_for

    def unordered(self: Any, *words: Any) -> None:
        init(self, *words)
        self._back = None

    def first_only(self: Any) -> None:
        self._writers[1:], kept = [], self._writers[1:]
        has_served(self)
        self._writers += kept

    def stale(self: Any, caches: Any, lengths: Any) -> Any:
        arena = build(self, caches, lengths)
        arena.lengths = [length + 1 for length in lengths]
        return arena

    has_served = Step.has_served
    broken = {
        "whole": (kv_arena, "COUNTS", kv_arena.COUNTS),
        "no groups": (grouping, "groups_of", lambda lengths: [[*range(len(lengths))]]),
        "results stay in the order of the groups": (Step, "__init__", unordered),
        "no mask": (Step, "_masks_of", lambda self, _: [None] * len(self._rows)),
        "a group has another's mask": (
            Step,
            "_masks_of",
            lambda self, mask: masks_of(self, mask)[::-1],
        ),
        "the first group alone grows": (Step, "has_served", first_only),
        "a failed step counts": (Step, "has_served", counts_each_layer),
        "a group is built with a token too many": (Arenas, "build", stale),
        "rows are in another group's arena": (
            kv_arena.Choice,
            "arenas_for",
            lambda self, caches, lengths, groups: arenas_for(self, caches, lengths, groups)[::-1],
        ),
    }
    return {what: verdict_of(length_groups, change) for what, change in broken.items()}


def broken_rows() -> dict[str, Any]:
    batches, layer = batched_prefill.Batches, passes.Layer
    compute, joined, filled = batched_prefill.compute, passes._joined, passes._filled
    init, cut, make_mask = Group.__init__, layer.cut, layer.make_mask
    first_part = batches.first_part

    def others_prefixes(core: Any, masks: Any, runner: Any, group: Any) -> Any:
        slots = [prompt.slots for prompt in group.prompts][::-1]
        swapped = [
            replace(prompt, slots=each) if len(each) == len(prompt.slots) else prompt
            for prompt, each in zip(group.prompts, slots, strict=True)
        ]
        with mock.patch.object(group, "prompts", swapped):
            return filled(core, masks, runner, group)

    def too_short(self: Any, prompts: Any, *, rounds: bool) -> None:
        init(self, prompts, rounds=rounds)
        self.passes = [(lengths, min(lengths)) for lengths, _ in self.passes]

    def rows_are_long(self: Any, row: int, tokens: slice) -> Any:
        return self.keys[row : row + 1], self.values[row : row + 1]

    def first_parts_are_skipped(self: Any, *words: Any) -> Any:
        first = first_part(self, *words)
        if first is None or first.trial is not None:
            return first
        return SimpleNamespace(answer=lambda _, input_ids, **__: input_ids)

    def without_states(core: Any, states: Any) -> Any:
        whole = joined(core, states)
        return None if whole is None else core.zeros_like(whole)

    def unmasked(self: Any, tokens: int, *words: Any, **options: Any) -> Any:
        with mock.patch.object(self, "_lacking", None):
            return make_mask(self, tokens, *words, **options)

    def at_one_position(self: Any) -> int:
        return int(self._held)

    def cut_too_much(self: Any, tokens: int) -> None:
        cut(self, tokens - 1)

    def kept_at_the_end(*words: Any) -> Any:
        return [
            replace(row, first=row.first and replace(row.first, layers=row.layers))
            for row in compute(*words)
        ]

    broken = {
        "whole": (batched_prefill, "COUNTS", batched_prefill.COUNTS),
        "states take in padding": (ArraysCache, "prepare", lambda *_, **__: None),
        "padding in front is attended to": (layer, "make_mask", unmasked),
        "padding in front moves positions": (layer, "offset", property(at_one_position)),
        "a row begins without its state": (passes, "_joined", without_states),
        "the state after a prompt is kept": (batched_prefill, "compute", kept_at_the_end),
        "a first part loses a token": (layer, "cut", cut_too_much),
        "nothing is kept": (batches, "first_part", first_parts_are_skipped),
        "a part fits no call": (passes.Part, "fits", lambda *_: False),
        "everything is left to stock": (batched_prefill, "groups", lambda _: []),
        "a row gets another's values": (
            batched_prefill,
            "compute",
            lambda *words: compute(*words)[::-1],
        ),
        "a row gets another's prefix": (passes, "_filled", others_prefixes),
        "padding is a row's own": (layer, "of_row", rows_are_long),
        "a pass is too short": (Group, "__init__", too_short),
    }
    return {what: verdict_of(prompts, change) for what, change in broken.items()}


def trunk_of_the_first_row() -> type:
    """What `mlx.last-row` puts in the trunk's place, broken: the first row stands for the last."""

    class FirstRow(trunk.CutTrunk):
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            hidden = self._trunk(*arguments, **options)
            self.hidden = hidden
            return hidden[:, :1]

    return FirstRow


def restless_stock() -> dict[str, str]:
    """What a check says where stock is not the same twice, and where the patch alone differs."""
    digest, numbers = rig.digest, count()
    short = cases.schedule("join a 9, join b 12, chain ab 3")

    def same(model: Any) -> None:
        equivalence.same("mlx.last-row", model, [short])

    def near(model: Any) -> None:
        equivalence.near("mlx.last-row", model, lambda: [play(model, prompts.SCRIPTED[:2])], 1 / 20)

    restless = (rig, "digest", lambda array: f"{digest(array)}{next(numbers)}")
    broken = (trunk, "CutTrunk", trunk_of_the_first_row())
    elsewhere = (equivalence, "on_cpu", lambda: False)
    found = {}
    for what, compare, *changes in (
        ("stock differs", same, restless, elsewhere),
        ("stock differs on a CPU", same, restless),
        ("the patch differs", same, broken, elsewhere),
        ("results may differ where logits are near", near, restless, elsewhere),
        ("logits are far", near, broken, elsewhere),
        ("results may not differ on a CPU", near, restless),
    ):
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(mock.patch.object(*change))
            model = stack.enter_context(models.model("qwen3", "float32"))
            equivalence._STOCK.clear()
            try:
                compare(model)
                found[what] = "equal"
            except Different:
                found[what] = "different"
            except Missing as error:
                found[what] = str(error)
    equivalence._STOCK.clear()
    return found


def broken_prefill() -> dict[str, Any]:
    override = Patching.override

    def stocks(inner: Any) -> Any:
        return lambda *words, **more: inner(*words, **more)

    def no_copies(self: Any, reference: str, _: Any) -> None:
        """Override the same definitions, and leave them as they are."""
        self.ran.seen = True
        override(self, reference, stocks)

    def all_but_the_release(self: Any, reference: str, make: Any) -> None:
        override(self, reference, stocks if reference.endswith("._release_cache") else make)

    def one_model(patch: str, _: Any, *, needs_pool: bool = False) -> int:
        """What `equivalence.episodes` plays, of which a part tells the broken ones."""
        with models.model("qwen3", "float32") as model:
            return equivalence.same(patch, model, [cases.HITTING], radix=True)

    broken = {
        "pool-write, whole": (pool, (pool_write, "RUNNER", pool_write.RUNNER)),
        "pool-write, nothing is copied": (pool, (Patching, "override", no_copies)),
        "pool-write, all slots at once": (pool, (pool_write, "LEAST", 1 << 20)),
        "first-buffer, whole": (buffer, (first_buffer, "STEP", 256)),
        "first-buffer, room for less than the prompt": (
            buffer, (first_buffer, "room_for", lambda tokens: tokens - 1)
        ),
        "first-buffer, room for 4096": (buffer, (first_buffer, "room_for", lambda tokens: 4096)),
        "first-buffer, released buffers keep their room": (
            buffer, (Patching, "override", all_but_the_release)
        ),
        "last-row, whole": (row, (trunk, "TRUNK", "model")),
        "last-row, the first row": (row, (trunk, "CutTrunk", trunk_of_the_first_row())),
        "last-row, no trunk is found": (row, (last_row, "owner_of_trunk", lambda model: None)),
    }  # fmt: skip
    with ExitStack() as stack:
        for proof in (buffer, row, pool):
            stack.enter_context(mock.patch.object(proof, "episodes", one_model))
        return {what: verdict_of(*how) for what, how in broken.items()}


def few_rows() -> dict[str, Any]:
    """A device that counts as unproven, where heads give other bits for fewer positions."""

    class Head:
        """As a GPU's products: those of fewer than so many rows come from another kernel."""

        def __init__(self, head: Any, rows: int) -> None:
            self._head, self._rows = head, rows

        def __call__(self, hidden: Any) -> Any:
            logits = self._head(hidden)
            return logits if hidden.shape[1] >= self._rows else logits + logits

    few = [("join", who, tokens) for who, tokens in (("a", 9), ("b", 14), ("c", 9), ("d", 14))]
    many = [("join", "a", 300), ("join", "b", 310), ("join", "c", 9), ("decode", "abc")]
    results: dict[str, Any] = {}
    with models.model("qwen3", "bfloat16") as model:
        head = model.model.lm_head
        for rows in (1, 2, 12, 280):
            dict.__setitem__(model.model, "lm_head", Head(head, rows))
            schedule = few if rows == 12 else many
            for selection in ("none", "mlx.last-row"):
                with mock.patch.object(mx, "default_device", return_value=mx.Device(mx.gpu)):
                    results[f"{rows} {selection}"] = played(
                        selection, model, [schedule], last_row.COUNTS, "mlx.last-row", radix=True
                    )
        dict.__setitem__(model.model, "lm_head", head)
    return results
