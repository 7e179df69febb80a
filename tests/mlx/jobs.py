"""What `on_release` plays in an environment with stock sglang of one release."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from importlib import import_module, metadata
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import sglang_perf_patches

# What a request is called when a graph is counted → its prompt's length.
COUNTED = {"a": 5, "b": 9, "c": 9, "d": 12}

SEEDS = range(6)


def small_buffers() -> dict[str, Any]:
    """Many batched decodes that cross the end of a buffer, and the same in wide buffers.

    The size is stock's own attribute, set lower.
    """
    from sglang_perf_patches.verify.mlx import cases, models

    many = [cases.SCRIPTED, *(cases.random_schedule(Random(seed)) for seed in SEEDS)]
    equal = [[("join", "a", 6), ("join", "b", 6), ("chain", "ab", 9)]]
    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model:
        for name, schedules in (("many", many), ("equal lengths", equal)):
            results[name] = {
                "stock": outcome_of_growth(model, "none", 8, schedules),
                "all patched": outcome_of_growth(model, "mlx", 8, schedules),
                "wide": outcome_of_growth(model, "none", 1024, schedules),
            }
            with by_stocks_code():
                results[name]["patched"] = outcome_of_growth(model, "mlx.kv-arena", 8, schedules)
    return results


def outcome_of_growth(
    made: Any, selection: str, tokens: int, schedules: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """What schedules give with buffers of so many tokens."""
    from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
    from sglang_perf_patches.verify.mlx import rig

    sglang_perf_patches.activate(selection, strict=True)
    kv_arena.COUNTS.clear()
    player = rig.Player(made)
    player.runner._max_seq_len = tokens
    results: dict[str, Any] = {}
    try:
        results["played"] = [asdict(player.play(schedule)) for schedule in schedules]
    except ValueError as error:
        results["raised"] = str(error)
    results["counts"] = dict(kv_arena.COUNTS)
    del player
    gc.collect()
    sglang_perf_patches.deactivate()
    return results


@contextmanager
def by_stocks_code() -> Iterator[None]:
    """Let ``mlx.kv-arena`` leave every step to stock's code."""
    from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena

    with mock.patch.object(kv_arena, "_begin", return_value=None):
        yield


def before_23470() -> dict[str, Any]:
    """0.5.11 as it is, with #23470 undone, and with the patch on top of that.

    A tree from before #23470, given by PYTHONPATH, has nothing to undo and is judged as it is.
    """
    from before_23470 import undo

    from sglang_perf_patches.verify.mlx import models

    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model, counted_calls() as calls:

        def outcome_of(what: str) -> None:
            results[what] = outcome(model)
            results[what]["calls"] = calls_of_a_step(model, calls)

        outcome_of("released")
        wrapper = import_module(wrapper_name())
        if hasattr(wrapper.BatchedDecodeContext, "__post_init__"):
            undo(wrapper)
            outcome_of("undone")
            judge_as_before_23470()
        sglang_perf_patches.activate("mlx.decode-context", strict=True)
        outcome_of("mlx.decode-context")
        results["mlx.decode-context"]["state"] = asdict(state("mlx.decode-context"))
        sglang_perf_patches.deactivate()
        outcome_of("again")
    return results


def off() -> dict[str, Any]:
    """What the patched modules hold, with the plugin as the environment has it."""
    from attributes import describe, held, patched_modules
    from sglang.srt.plugins import load_plugins

    from tests.proof import OF_RUNNER

    if os.environ.get("LOAD_PLUGINS"):
        load_plugins()
    modules = [import_module(name) for name in patched_modules()]
    results: dict[str, Any] = {
        "plugins": [e.dist.name for e in metadata.entry_points(group="sglang.srt.plugins")],
        "attributes": describe(modules),
    }
    sglang_perf_patches.deactivate()
    before = held(modules)
    report = sglang_perf_patches.activate(OF_RUNNER, strict=True)
    results["live"] = [patch.id for patch in report.patches if patch.state == "live"]
    results["changed"] = sorted(
        name for name, now in held(modules).items() if now != before.get(name)
    )
    sglang_perf_patches.deactivate()
    after = held(modules)
    # The kept objects are alive in `before`, so that equal ids mean the identical object.
    results["differs after"] = sorted(
        name for name in before.keys() | after.keys() if after.get(name) != before.get(name)
    )
    results["attributes after"] = describe(modules)
    return results


def broken_arena() -> dict[str, Any]:
    """What the case of ``mlx.kv-arena`` says of it, and of it broken in one place at a time."""
    from sglang_perf_patches.sets.mlx.kv_arena import arena
    from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
    from sglang_perf_patches.sets.mlx.kv_arena import choice as arena_choice
    from sglang_perf_patches.sets.mlx.kv_arena.step import Step, Writer
    from sglang_perf_patches.verify.mlx import kv_arena as proof

    write, take_back = Writer.write, arena.Rows.take_back

    def wrong_token(self: Any, layer: Any, keys: Any, values: Any) -> Any:
        return write(self, layer, keys, keys)

    def shorter(self: Any, row: Any) -> None:
        row.offset -= 1
        take_back(self, row)
        row.offset += 1

    def any_order(self: Any, caches: Any, lengths: Any) -> Any:
        layer = self._rows.layer_if_row(caches[0][0])
        if layer is None or len(layer.caches) != len(lengths):
            return None
        return layer.arena if layer.arena.intact else None

    broken = {
        "whole": (kv_arena, "COUNTS", kv_arena.COUNTS),
        "V is K": (Writer, "write", wrong_token),
        "a row comes back without its last token": (arena.Rows, "take_back", shorter),
        "a batch in another order is taken for the same": (
            arena_choice.Choice,
            "_arena_of",
            any_order,
        ),
        "everything is left to stock": (kv_arena, "_begin", lambda *_: None),
        "a failed step counts": (Step, "has_served", _counts_each_layer),
    }
    return {what: verdict_of(proof, change) for what, change in broken.items()}


def _counts_each_layer(self: Any) -> None:
    """Advance each layer at once: a step that fails leaves some of them longer."""
    for writer in self._writers:
        layers = [layer for layer in writer.arena.layers if layer is not None]
        for cache in layers[len(layers) - self._left].caches:
            cache.offset += 1
    self._left -= 1
    if not self._left:
        for writer in self._writers:
            writer.arena.lengths = [length + 1 for length in writer.lengths]


def broken_groups() -> dict[str, Any]:
    """The same of ``mlx.length-groups``."""
    from sglang_perf_patches.sets.mlx import grouping
    from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
    from sglang_perf_patches.sets.mlx.kv_arena import choice as arena_choice
    from sglang_perf_patches.sets.mlx.kv_arena import moves as arena_moves
    from sglang_perf_patches.sets.mlx.kv_arena.step import GroupedStep, Step
    from sglang_perf_patches.verify.mlx import length_groups as proof

    build, masks_of, init = arena_moves.Moves.build, GroupedStep._masks_of, GroupedStep.__init__
    arenas_for = arena_choice.Choice.arenas_for

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
        "results stay in the order of the groups": (GroupedStep, "__init__", unordered),
        "no mask": (GroupedStep, "_masks_of", lambda self, _: [None] * len(self._rows)),
        "a group has another's mask": (
            GroupedStep,
            "_masks_of",
            lambda self, mask: masks_of(self, mask)[::-1],
        ),
        "the first group alone grows": (Step, "has_served", first_only),
        "a failed step counts": (Step, "has_served", _counts_each_layer),
        "a group is built with a token too many": (arena_moves.Moves, "build", stale),
        "rows are in another group's arena": (
            arena_choice.Choice,
            "arenas_for",
            lambda self, caches, lengths, groups: arenas_for(self, caches, lengths, groups)[::-1],
        ),
    }
    return {what: verdict_of(proof, change) for what, change in broken.items()}


def broken_rows() -> dict[str, Any]:
    """The same of ``mlx.batched-prefill``."""
    from mlx_lm.models.cache import ArraysCache

    from sglang_perf_patches.sets.mlx.batched_prefill import body as batched_prefill
    from sglang_perf_patches.sets.mlx.batched_prefill import passes, rows
    from sglang_perf_patches.sets.mlx.batched_prefill.grouping import Group
    from sglang_perf_patches.verify.mlx import batched_prefill as proof

    batches, layer = batched_prefill._Batches, passes.Layer
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
        first, trial = first_part(self, *words)
        return (lambda *_, **__: None, None) if first and not trial else (first, trial)

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
        "a part fits no call": (rows.Part, "fits", lambda *_: False),
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
    return {what: verdict_of(proof, change) for what, change in broken.items()}


def trunk_of_the_first_row() -> type:
    """What `mlx.last-row` puts in the trunk's place, broken: the first row stands for the last."""
    from sglang_perf_patches.sets.mlx import last_row as body

    class FirstRow(body.CutTrunk):
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            hidden = self._trunk(*arguments, **options)
            self.hidden = hidden
            return hidden[:, :1]

    return FirstRow


def verdict_of(proof: Any, change: tuple[Any, str, Any]) -> str:
    """What a patch's checks say with one attribute changed: equal, different, or an error."""
    from sglang_perf_patches.verify import Different
    from tests.proof import checks

    def few(draw: Any, count: int | None = None) -> Any:
        return [draw(Random(0))]

    with mock.patch.object(*change):
        try:
            compared = sum(check(few) for check in checks(proof.PATCH).values())
            return "equal" if compared else "nothing was compared"
        except Different:
            return "different"
        except (RuntimeError, ValueError, AttributeError) as error:
            return f"raised {type(error).__name__}"


def restless_stock() -> dict[str, str]:
    """What a check says where stock is not the same twice, and where the patch alone differs."""
    from itertools import count

    from sglang_perf_patches.sets.mlx import last_row
    from sglang_perf_patches.verify import Different, Missing
    from sglang_perf_patches.verify.mlx import batched_prefill as prompts
    from sglang_perf_patches.verify.mlx import cases, equivalence, models, rig
    from sglang_perf_patches.verify.mlx.batches import play

    digest, numbers = rig.digest, count()
    short = cases.schedule("join a 9, join b 12, chain ab 3")

    def same(model: Any) -> None:
        equivalence.same("mlx.last-row", model, [short])

    def near(model: Any) -> None:
        equivalence.near("mlx.last-row", model, lambda: [play(model, prompts.SCRIPTED[:2])], 1 / 20)

    restless = (rig, "digest", lambda array: f"{digest(array)}{next(numbers)}")
    broken = (last_row, "CutTrunk", trunk_of_the_first_row())
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


def arena_memory() -> dict[str, Any]:
    """Which buffers there are over the life of a batch, in bytes, stock and patched."""
    import mlx.core as mx

    from sglang_perf_patches.sets.mlx.kv_arena import arena
    from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
    from sglang_perf_patches.verify.mlx import models, rig

    results: dict[str, Any] = {}
    names = list("abcdef")
    with models.model("qwen3", "float32") as model:
        for selection in ("none", "mlx.kv-arena"):
            sglang_perf_patches.activate(selection, strict=True)
            kv_arena.COUNTS.clear()
            gc.collect()
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            player = rig.Player(model)
            for number, name in enumerate(names):
                player.join(name, 100 + 20 * number)
                player.pending.clear()
            for _ in range(180):
                player.decode(names)
                player.pending.clear()
            prefilled_and_grown = mx.get_peak_memory() - before
            mx.reset_peak_memory()
            steady = mx.get_active_memory() - before
            for _ in range(20):
                player.decode(names)
                player.pending.clear()
            in_steps = mx.get_peak_memory() - before - steady
            counts = dict(kv_arena.COUNTS)
            for name in names[:3]:
                player.leave(name)
            player.decode(names[3:])
            player.pending.clear()
            fewer = mx.get_active_memory() - before
            for name in names[3:]:
                player.leave(name)
            results[selection] = {
                "peak": max(prefilled_and_grown, mx.get_peak_memory() - before),
                "steady": steady,
                "in steps": in_steps,
                "fewer": fewer,
                "gone": mx.get_active_memory() - before,
                "counts": counts,
            }
            del player
            sglang_perf_patches.deactivate()
    results["capacities"] = [
        arena.capacity_for(n, most) for n in range(1, 5000) for most in _rooms(n)
    ]
    results["growths"] = _growths(arena.capacity_for)
    return results


def _rooms(length: int) -> tuple[int, int, int]:
    """How much room stock might have: just enough, its first buffers, and no bound."""
    return length, max(length, 4096), 1 << 30


def _growths(capacity_for: Any) -> dict[str, int]:
    """Copies of a buffer that grows token by token to 20000 tokens, and how much larger it is."""
    capacity, copies, spare = 0, 0, 0
    for length in range(1, 20_001):
        if length > capacity:
            capacity, copies = capacity_for(length, 1 << 30), copies + 1
            spare = max(spare, capacity - length - length // 16)
    return {"copies": copies, "spare": spare}


def changing() -> dict[str, Any]:
    """The counts of a batch that changes at every step, by how many requests it has.

    Then the batch settles, and the counts are of a settled batch's change and of its next steps.
    """
    from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
    from sglang_perf_patches.verify.mlx import models, rig

    results = {}
    with models.model("qwen3", "float32") as model:
        sglang_perf_patches.activate("mlx.kv-arena", strict=True)
        for requests in (2, 4):
            player = rig.Player(model)
            names = [f"r{number}" for number in range(requests + 7)]
            for name in names:
                player.join(name, 9)
            player.decode(names[:requests], 3)
            of_batch = results[str(requests)] = {}
            for what, firsts, steps in (
                ("changing", range(1, 7), 1),
                ("settled", (6,), 4),
                ("changed once", (7,), 3),
            ):
                kv_arena.COUNTS.clear()
                for first in firsts:
                    for name in names[:first]:
                        if name in player._held:
                            player.leave(name)
                    player.decode(names[first : first + requests], steps)
                of_batch[what] = dict(kv_arena.COUNTS)
        sglang_perf_patches.deactivate()
    return results


def memory_while_changing() -> dict[str, Any]:
    """Bytes that a step takes in a batch which changes at every step, and those of its buffers."""
    from sglang_perf_patches.verify.mlx import models

    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model:
        for what, selection in (("stock", "none"), ("patched", "mlx.kv-arena")):
            sglang_perf_patches.activate(selection, strict=True)
            results[what] = _memory_of_a_changing_step(model)
            sglang_perf_patches.deactivate()
    return results


def _memory_of_a_changing_step(made: Any) -> dict[str, int]:
    import mlx.core as mx

    from sglang_perf_patches.verify.mlx import rig

    gc.collect()
    before = mx.get_active_memory()
    player = rig.Player(made)
    names = list("abcdef")
    for name in names:
        player.join(name, 400)
    player.decode(names, 3)
    for first in range(1, 4):
        player.decode([*names[first:], *names[:first]])
    player.pending.clear()
    gc.collect()
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    player.decode(names)
    player.pending.clear()
    taken = mx.get_peak_memory() - held
    for name in names:
        player.leave(name)
    return {"held": held - before, "taken": taken}


def far_apart() -> dict[str, Any]:
    """Requests of very different lengths, where padded rows would take more than stock's buffers.

    The least size of stock's buffers, as the patch knows it, is set lower.
    """
    from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
    from sglang_perf_patches.sets.mlx.kv_arena import moves as arena_moves
    from sglang_perf_patches.verify.mlx import models, rig

    schedule = [
        ("join", "a", 200),
        ("join", "b", 5),
        ("join", "c", 6),
        ("chain", "abc", 3),
        ("leave", "a"),
        ("chain", "bc", 3),
    ]
    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model:
        for selection in ("none", "mlx.kv-arena"):
            sglang_perf_patches.activate(selection, strict=True)
            kv_arena.COUNTS.clear()
            with mock.patch.object(arena_moves, "STOCK_ROOM", 16):
                results[selection] = {
                    "played": asdict(rig.Player(model).play(schedule)),
                    "counts": dict(kv_arena.COUNTS),
                }
            sglang_perf_patches.deactivate()
    return results


def broken_trial() -> dict[str, Any]:
    """A device that counts as unproven, where arenas give other values: what happens."""
    from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
    from sglang_perf_patches.sets.mlx.kv_arena.step import Writer
    from sglang_perf_patches.verify.mlx import cases, models, rig

    write = Writer.write

    def wrong_token(self: Any, layer: Any, keys: Any, values: Any) -> Any:
        return write(self, layer, keys, keys)

    schedules = [cases.SCRIPTED, cases.HITTING, cases.GROWING]
    results: dict[str, Any] = {}
    with (
        models.model("qwen3", "float32") as model,
        mock.patch.object(kv_arena, "is_proven", return_value=False),
    ):
        for what, selection, changed in (
            ("stock", "none", write),
            ("broken", "mlx.kv-arena", wrong_token),
            ("whole", "mlx.kv-arena", write),
        ):
            with mock.patch.object(Writer, "write", changed):
                sglang_perf_patches.activate(selection)
                kv_arena.COUNTS.clear()
                player = rig.Player(model, radix=True)
                results[what] = {"played": [asdict(player.play(each)) for each in schedules]}
                results[what] |= {"counts": dict(kv_arena.COUNTS)}
                results[what] |= {"state": asdict(state("mlx.kv-arena"))}
                sglang_perf_patches.deactivate()
    return results


def queued_faults() -> dict[str, Any]:
    """A device that counts as unproven, and is wrong where a step is queued behind another one.

    Stock, patched on a device without a fault, with each fault, and with a fault while the patch
    waits for every step that it compares.
    """
    from sglang_perf_patches.sets.mlx.kv_arena import arena_self_check
    from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
    from sglang_perf_patches.verify.mlx import cases, models, rig

    short: list[cases.Step] = [
        *(("join", who, 9) for who in "ab"),
        ("chain", "ab", 22),
        ("join", "c", 12),
        ("chain", "cab", 22),
    ]
    longer: list[cases.Step] = [*(("join", who, 300) for who in "ab"), ("chain", "ab", 22)]
    check = arena_self_check.ArenaSelfCheck
    end_step = check.end_step

    def waits(self: Any) -> None:
        import mlx.core as mx

        end_step(self)
        mx.synchronize()

    results: dict[str, Any] = {}
    with (
        models.model("qwen3", "float32") as model,
        mock.patch.object(kv_arena, "is_proven", return_value=False),
    ):
        device = _Device(model)
        for what, selection, fault in (
            ("stock", "none", ""),
            ("none", "mlx.kv-arena", ""),
            *((fault, "mlx.kv-arena", fault) for fault in _Device.FAULTS),
            ("waits", "mlx.kv-arena", "queued"),
        ):
            sglang_perf_patches.activate(selection)
            kv_arena.COUNTS.clear()
            player = rig.Player(model)
            schedules = [short, longer] if what in {"stock", "none", "longer"} else [short]
            ends = waits if what == "waits" else end_step
            with device.faulty(fault), mock.patch.object(check, "end_step", ends):
                results[what] = {
                    "played": [asdict(player.play(each)) for each in schedules],
                    "counts": dict(kv_arena.COUNTS),
                    "faults": device.faults,
                }
            if selection != "none":
                results[what] |= {"state": asdict(state("mlx.kv-arena"))}
            del player
            gc.collect()
            sglang_perf_patches.deactivate()
    return results


class _Device:
    """A device on which arenas go wrong in steps that are queued behind one nobody has waited for.

    Attributes:
        faults: writes that went wrong.
    """

    FAULTS = ("queued", "enlarged", "moved", "unequal", "longer")
    """Each is of queued steps alone, and all but the first of some of them."""

    def __init__(self, made: Any) -> None:
        self._owner = made.model.model
        self._embed = self._owner.embed_tokens
        self.faults = 0
        # What was queued, with its number; then the numbers of the last decode steps, as they were
        # begun, and of what has been waited for.
        self._queued: dict[int, tuple[Any, int]] = {}
        self._number = self._waited = 0
        self._begun = [0, 0]

    @contextmanager
    def faulty(self, fault: str) -> Iterator[None]:
        """Make writes of arenas go wrong."""
        from sglang_perf_patches.sets.mlx.kv_arena import moves as arena_moves
        from sglang_perf_patches.sets.mlx.kv_arena.step import Writer

        self.faults = 0
        moves, write = arena_moves.Moves, Writer.write
        build, grow = moves.build, moves.grow
        device, happened = self, {"last": ""}

        def building(self: Any, caches: Any, *more: Any) -> Any:
            has_rows = any(type(cache) is self._rows.row_class for cache in caches[0])
            happened["last"] = "moved" if has_rows else ""
            return build(self, caches, *more)

        def growing(self: Any, *words: Any) -> None:
            happened["last"] = "enlarged"
            grow(self, *words)

        def writing(self: Any, layer: Any, keys: Any, values: Any) -> Any:
            concerned = {
                "": False,
                "queued": True,
                "unequal": not self.is_equal,
                "longer": self.longest > 256,
            }.get(fault, happened["last"] == fault)
            if concerned and device.is_busy():
                device.faults += 1
                values = keys
            return write(self, layer, keys, values)

        with (
            self._watched(),
            mock.patch.object(moves, "build", building),
            mock.patch.object(moves, "grow", growing),
            mock.patch.object(Writer, "write", writing),
        ):
            yield

    def is_busy(self) -> bool:
        """Whether the step before this one is queued, and nobody has waited for it."""
        before, now = self._begun
        return any(before < number <= now for _, number in self._queued.values()) and not any(
            before < number <= self._waited for _, number in self._queued.values()
        )

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note what is queued and what is waited for, by stock's code and by that of patches."""
        import mlx.core as mx

        queue = mx.async_eval

        def queued(*arrays: Any) -> None:
            self._number += 1
            for array in _flat(arrays):
                self._queued[id(array)] = array, self._number
            queue(*arrays)

        def of_all(wait: Any) -> Any:
            def waits(*arrays: Any) -> Any:
                self._waited = self._number
                return wait(*arrays)

            return waits

        def of_array(wait: Any) -> Any:
            def waits(array: Any) -> Any:
                # Whatever was not queued is computed now, behind all that was.
                _, number = self._queued.get(id(array), (None, self._number))
                self._waited = max(self._waited, number)
                return wait(array)

            return waits

        def embed(tokens: Any) -> Any:
            if tokens.shape[0] > 1:
                self._begun = [self._begun[1], self._number]
            return self._embed(tokens)

        self._queued.clear()
        self._owner["embed_tokens"] = embed
        try:
            with (
                mock.patch.object(mx, "async_eval", queued),
                mock.patch.object(mx, "eval", of_all(mx.eval)),
                mock.patch.object(mx, "synchronize", of_all(mx.synchronize)),
                mock.patch.object(mx.array, "tolist", of_array(mx.array.tolist)),
                mock.patch.object(mx.array, "item", of_array(mx.array.item)),
            ):
                yield
        finally:
            self._owner["embed_tokens"] = self._embed


def _flat(arrays: Any) -> Iterator[Any]:
    for each in arrays:
        if isinstance(each, (list, tuple)):
            yield from _flat(each)
        else:
            yield each


def broken_prefill() -> dict[str, Any]:
    """What the cases of the patches of prefill and pool say of them, and of them broken."""
    from sglang_perf_patches.live.member import Patching
    from sglang_perf_patches.sets.mlx import first_buffer, last_row
    from sglang_perf_patches.sets.mlx.pool_write import body as pool_write
    from sglang_perf_patches.sets.mlx.pool_write import room
    from sglang_perf_patches.verify.mlx import cases, equivalence, models
    from sglang_perf_patches.verify.mlx import first_buffer as buffer
    from sglang_perf_patches.verify.mlx import last_row as row
    from sglang_perf_patches.verify.mlx import pool_write as pool

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
        "pool-write, all slots at once": (pool, (room, "LEAST", 1 << 20)),
        "first-buffer, whole": (buffer, (first_buffer, "STEP", 256)),
        "first-buffer, room for less than the prompt": (
            buffer, (first_buffer, "room_for", lambda tokens: tokens - 1)
        ),
        "first-buffer, room for 4096": (buffer, (first_buffer, "room_for", lambda tokens: 4096)),
        "first-buffer, released buffers keep their room": (
            buffer, (Patching, "override", all_but_the_release)
        ),
        "last-row, whole": (row, (last_row, "TRUNK", "model")),
        "last-row, the first row": (row, (last_row, "CutTrunk", trunk_of_the_first_row())),
        "last-row, no trunk is found": (row, (last_row, "owner_of_trunk", lambda model: None)),
    }  # fmt: skip
    with ExitStack() as stack:
        for proof in (buffer, row, pool):
            stack.enter_context(mock.patch.object(proof, "episodes", one_model))
        return {what: verdict_of(*how) for what, how in broken.items()}


def growing_pool(*, episodes: int = 12, steps: int = 60) -> dict[str, Any]:
    """A pool of stock's class under random writes and reads, against an array of all slots.

    The patch pauses now and then, so stock's own code takes the buffers too. What is found: the
    first difference of each way to break the growth, "" for none; and the least part of the slots
    that a pool had at an episode's end.
    """
    installed_release()
    from sglang_perf_patches.compat import source
    from sglang_perf_patches.sets.mlx.pool_write import ATTENTION_POOL, KV_POOL, room
    from sglang_perf_patches.verify.mlx import models, rig

    tree = source.Tree(source.find_installed())
    name = ATTENTION_POOL if tree.definition(ATTENTION_POOL) else KV_POOL
    module, _, attribute = name.partition(":")
    pool_class = getattr(import_module(module), attribute)
    with models.model("qwen3", "float32") as model:
        rig.Player(model)  # imports stock's runner
    sglang_perf_patches.activate("mlx.pool-write", strict=True)
    assert state("mlx.pool-write").state == "live"

    def loses_tokens(self: Any, layer: Any, slots: int) -> bool:
        array = list.__getitem__(self, layer)
        if array.shape[0] >= slots:
            return False
        self[layer] = self._core.zeros((slots, *array.shape[1:]), dtype=array.dtype)
        return True

    def never_whole(self: Any, layer: Any) -> Any:
        return list.__getitem__(self, layer)

    broken: dict[str, tuple[Any, str, Any]] = {
        "": (room, "LEAST", room.LEAST),
        "tokens are lost": (room.Buffers, "widen", loses_tokens),
        "stock's code gets few slots": (room.Buffers, "__getitem__", never_whole),
    }
    results: dict[str, Any] = {}
    for what, (owner, attribute, value) in broken.items():
        with mock.patch.object(owner, attribute, value):
            told = [_grown(pool_class, seed, steps) for seed in range(episodes)]
        results[what or "whole"] = next((each for each in told if isinstance(each, str)), "")
        if not what:
            results["least"] = min(each for each in told if not isinstance(each, str))
    sglang_perf_patches.deactivate()
    return results


def looks_at_slots() -> dict[str, Any]:
    """How often the patched pool looks through the slots of a prefix hit, whose layers share them.

    A look is a ``memoryview`` of them. Stock's results and the patch's too.
    """
    installed_release()
    from sglang_perf_patches.sets.mlx.pool_write import room
    from sglang_perf_patches.verify.mlx import models, rig

    looks: list[int] = []

    def counted(slots: Any) -> memoryview:
        looks.append(len(slots))
        return memoryview(slots)

    results: dict[str, Any] = {"layers": models.LAYERS}
    with models.model("qwen3", "float32") as model:
        for selection in ("none", "mlx.pool-write"):
            sglang_perf_patches.activate(selection, strict=True)
            player = rig.Player(model, radix=True)
            played = [asdict(player.play([("join", "a", 300), ("leave", "a")], ends=False))]
            vars(room)["memoryview"] = counted
            try:
                played.append(asdict(player.play([("hit", "b", "a", 280, 8)])))
            finally:
                del vars(room)["memoryview"]
            results[selection] = played
            sglang_perf_patches.deactivate()
    return results | {"looks": looks}


def _grown(pool_class: Any, seed: int, steps: int) -> str | float:
    """One episode: the first difference, or the part of the slots that the pool had at its end."""
    import mlx.core as mx
    import numpy as np

    from sglang_perf_patches.sets.mlx.pool_write import body

    sys.path.append(str(Path(__file__).parents[1] / "benchmarks" / "rig" / "injected"))
    from pausing import paused  # type: ignore[import-not-found]

    chance, (layers, heads, size) = Random(seed), (3, 2, 4)
    slots = chance.choice((100, 1000, 5000))
    pool = pool_class(slots + 1, layers, heads, size, mx.float32)
    expected = np.zeros((2, layers, slots + 1, heads, size), dtype=np.float32)
    most = 1
    for step in range(steps):
        most = min(slots, most + chance.randrange(1 + slots // 100))
        which = chance.sample(range(1, most + 1), min(most, chance.randrange(1, 40)))
        # A read may be of slots that nobody has written.
        beyond = [min(slots, slot + chance.randrange(300)) for slot in which]
        kind = chance.choice(("write", "write", "write", "one", "read", "stock", "all", "clear"))
        chosen = mx.array(beyond if kind == "read" else which, dtype=mx.int32)
        if kind in ("one", "stock", "all"):
            if chance.randrange(8):
                continue  # rarely, as the pool has all of its slots then
            if pool.k_buffer[1].shape[0] != slots + 1:
                return f"seed {seed}, step {step}: few slots"  # MLX would write out of bounds
        if kind in ("write", "stock"):
            values = np.random.default_rng(step).random(
                (2, layers, len(which), heads, size), dtype=np.float32
            )
            expected[:, :, which] = values
            if kind == "write":
                pool.set_kv_all_layers(chosen, mx.array(values[0]), mx.array(values[1]))
            else:
                if (writes := vars(pool).get(body._WRITES)) is not None:
                    writes.evaluate(mx, pool)  # as at a request's end; a pause waits for it
                with paused("mlx.pool-write"):
                    pool.set_kv_all_layers(chosen, mx.array(values[0]), mx.array(values[1]))
        elif kind == "one":
            value = np.full((len(which), heads, size), step, dtype=np.float32)
            expected[:, 1, which] = value
            pool.set_kv(1, chosen, mx.array(value), mx.array(value))
        elif kind == "read":
            for layer in range(layers):
                for read, kept in zip(pool.get_kv(layer, chosen), expected[:, layer], strict=True):
                    if not np.array_equal(np.array(read), kept[beyond]):
                        return f"seed {seed}, step {step}: layer {layer}"
        elif kind == "all":
            for read, kept in zip(pool.get_kv_all_layers(chosen), expected, strict=True):
                if not np.array_equal(np.array(read), kept[:, which]):
                    return f"seed {seed}, step {step}: all layers"
        elif kind == "clear" and not chance.randrange(8):
            pool.clear()
            expected[:] = 0
    held = min(array.shape[0] for array in pool.all_buffers())
    return held / (slots + 1) if held <= slots + 1 else f"seed {seed}: {held} slots"


def on_cuda() -> dict[str, Any]:
    """The room of a request's buffers where MLX says that it runs on CUDA."""
    from types import SimpleNamespace

    import mlx.core as mx

    from sglang_perf_patches.sets.mlx import device
    from sglang_perf_patches.verify import Missing, comparing
    from sglang_perf_patches.verify.mlx import models, rig

    def verified(*patches: str, beside: tuple[str, ...] = ()) -> str:
        try:
            with comparing.live(*patches, beside=beside, ran=None):
                return "went live"
        except Missing as error:
            return str(error)

    results: dict[str, Any] = {}
    cuda = SimpleNamespace(is_available=lambda: True)
    with models.model("qwen3", "float32") as model, mock.patch.object(mx, "cuda", cuda):
        for cudnn in ("1", "0"):
            os.environ[device.CUDNN_ATTENTION] = cudnn
            sglang_perf_patches.activate("mlx.first-buffer,mlx.kv-arena")
            player = rig.Player(model)
            player.join("a", 300)
            results[cudnn] = {
                "room": player.runner._req_caches["a"][0].keys.shape[2],
                "state": asdict(state("mlx.first-buffer")),
                "arena": state("mlx.kv-arena").state,
            }
            del player  # its requests hold buffers of the patches
            gc.collect()
            sglang_perf_patches.deactivate()
        os.environ.pop(device.CUDNN_ATTENTION)
        results["alone"] = verified("mlx.first-buffer")
        results["beside"] = verified("mlx.kv-arena", beside=("mlx.first-buffer",))
    return results


def few_rows() -> dict[str, Any]:
    """A device that counts as unproven, where heads give other bits for fewer positions."""
    import mlx.core as mx

    from sglang_perf_patches.sets.mlx import last_row
    from sglang_perf_patches.verify.mlx import models, rig

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
                last_row.COUNTS.clear()
                with mock.patch.object(mx, "default_device", return_value=mx.Device(mx.gpu)):
                    sglang_perf_patches.activate(selection)
                    player = rig.Player(model, radix=True)
                    played = asdict(player.play(schedule))
                results[f"{rows} {selection}"] = {
                    "played": played,
                    "counts": dict(last_row.COUNTS),
                    "state": asdict(state("mlx.last-row")),
                }
                sglang_perf_patches.deactivate()
        dict.__setitem__(model.model, "lm_head", head)
    return results


def other_blas() -> dict[str, Any]:
    """A CPU whose products of one row have other bits, as with OpenBLAS, in each dtype.

    Only the products of its probe and of the head: the model does not call them by its name.
    """
    import mlx.core as mx

    from sglang_perf_patches.sets.mlx import last_row
    from sglang_perf_patches.verify.mlx import models, rig

    class Head:
        """Like `product`, for a module that multiplies by itself."""

        def __init__(self, head: Any) -> None:
            self._head = head

        def __call__(self, hidden: Any) -> Any:
            logits = self._head(hidden)
            return logits if hidden.shape[1] > 1 else logits * logits.dtype.size

    stock_product = mx.matmul

    def product(left: Any, right: Any) -> Any:
        result = stock_product(left, right)
        return result if left.shape[-2] > 1 else result + result

    schedule = [("join", "a", 300), ("join", "b", 310), ("decode", "ab")]
    results: dict[str, Any] = {"here": last_row.gives_rows_alone(mx)}
    for dtype in ("float32", "bfloat16"):
        with models.model("qwen3", dtype) as model, mock.patch.object(mx, "matmul", product):
            results["there"] = last_row.gives_rows_alone(mx)
            head = model.model.lm_head
            dict.__setitem__(model.model, "lm_head", Head(head))
            for selection in ("none", "mlx.last-row"):
                last_row.COUNTS.clear()
                sglang_perf_patches.activate(selection)
                played = asdict(rig.Player(model, radix=True).play(schedule))
                counts = dict(last_row.COUNTS)
                results[f"{dtype} {selection}"] = {
                    "played": played,
                    "counts": counts,
                    "state": asdict(state("mlx.last-row")),
                }
                sglang_perf_patches.deactivate()
            dict.__setitem__(model.model, "lm_head", head)
    return results


def together() -> dict[str, Any]:
    """Random episodes with every patch of the set, and stock; by the kind of model."""
    release = installed_release()
    from sglang_perf_patches.verify.mlx import cases, models, rig

    results: dict[str, Any] = {}
    for name, dtype in kinds(release):
        with models.model(name, dtype) as model:
            schedules = [cases.random_episodes(Random(seed)) for seed in range(4)]
            schedules += [cases.HITTING]
            of_model = results[f"{name} {dtype}"] = {}
            for selection in ("none", "mlx"):
                report = sglang_perf_patches.activate(selection, strict=True)
                player = rig.Player(model, radix=True)
                of_model[selection] = [asdict(player.play(each)) for each in schedules]
                of_model["ran"] = [patch.id for patch in report.patches if patch.state == "live"]
                sglang_perf_patches.deactivate()
    return results


def leaving() -> dict[str, Any]:
    """What patches do that are to be removed while they hold something."""
    installed_release()
    import leaving as plays

    return {"running": plays.running_requests(), "postponed": plays.postponed_write()}


def trials() -> dict[str, Any]:
    """What patches do on a device that counts as unproven."""
    release = installed_release()
    import trials as plays

    results = {
        "in groups": plays.in_groups(),
        "restless": plays.restless(),
        "late": plays.late(),
    }
    if release == "0.5.23":
        results["prompts"] = plays.prompts()
        results["mistakes"] = plays.mistakes()
    return results


def whose_turn() -> dict[str, Any]:
    """How many turns prompts with the same tokens continue, by what the radix cache has of them."""
    installed_release()
    from sglang_perf_patches.live import engine
    from sglang_perf_patches.sets.mlx.next_turn import body as next_turn
    from sglang_perf_patches.verify.mlx import cases, models, rig

    turn: list[cases.Step] = [("join", "a", 200), ("decode", "a", 2), ("leave", "a")]
    again: list[cases.Step] = [*turn, ("hit", "b", "a", 200, 20)]
    results: dict[str, Any] = {}
    with models.model("gpt_oss", "float32") as model:
        sglang_perf_patches.activate("mlx.next-turn, mlx.first-buffer", strict=True)

        def continued(schedule: Sequence[Any], change: Any = None) -> int:
            next_turn.COUNTS.clear()
            player = rig.Player(model, radix=True)
            player.play(schedule[:-1], ends=False)
            if change is not None:
                change(player)
            player.play(schedule[-1:])
            return next_turn.COUNTS["continued"]

        def evicted(player: Any) -> None:
            player._prefill("c", player._donated["a"][0], [])

        def elsewhere(player: Any) -> None:
            tokens, slots = player._donated["a"]
            player._donated["a"] = tokens, [slot - 300 for slot in slots]

        def flushed(player: Any) -> None:
            before = _active_memory()
            player._pool.clear()
            results["freed by a flush"] = before - _active_memory()

        results["same prefix in the radix cache"] = continued(again)
        results["not in the radix cache"] = continued([*turn, ("decode", "c")], evicted)
        results["in other slots"] = continued(again, elsewhere)
        results["after a flush"] = continued(again, flushed)
        short: list[cases.Step] = [("join", "a", 12), ("decode", "a", 2), ("leave", "a")]
        for shared in (1, 11):
            other = ("hit", "o", "a", shared, 30)
            next_one = ("hit", "b", "a", 13, 20)
            results[f"of another with {shared} tokens"] = continued([*short, other])
            results[f"next to one with {shared} tokens"] = continued([*short, other, next_one])

        # How stock marks a request that has ended, before it removes the request.
        def ended(player: Any) -> None:
            held = player._held.pop("a")
            slots = player._pool.slots("a", 0, held)
            player._donated["a"] = player.tokens("a")[:held], slots
            player.runner.release_request_row("a", held)

        steps: list[cases.Step] = [("join", "x", 9), *turn[:-1], again[-1]]
        results["ended, and not removed yet"] = continued(steps, ended)
        player = rig.Player(model, radix=True)
        player.play(steps[:-1], ends=False)
        ended(player)
        player.play(steps[-1:], ends=False)
        results["running after that"] = sorted(player.runner._req_caches)
        player.runner.remove_request("a")  # as stock does at the next step
        player.decode(["x", "b"], 2)
        player = rig.Player(model, radix=True)
        player.play(turn, ends=False)
        before = _active_memory()
        sglang_perf_patches.deactivate()
        results["off with a turn kept"] = engine.report() is None
        results["freed when taken off"] = before - _active_memory()
        player._pool.clear()
        results["of stock when taken off"] = "clear" not in vars(player._pool)
    return results


def give_windows() -> None:
    """Make the tiny model of a server, whose folder a variable names, one with sliding windows."""
    tests = Path(__file__).parents[1]
    sys.path += [str(tests / "benchmarks" / "mlx"), str(tests / "harness")]
    import mlx.core as mx
    from served import _with_windows

    folder = Path(os.environ["FOLDER"])
    weights = _with_windows(folder)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})


def kept_turns() -> dict[str, int]:
    """Bytes that kept turns hold after a batch has ended, and those that they count."""
    installed_release()
    from sglang_perf_patches.sets.mlx.next_turn import body as next_turn
    from sglang_perf_patches.verify.mlx import models, rig

    sizes: list[int] = []

    class Turns(next_turn._Turns):
        def keep(self, *words: Any) -> bool:
            kept = super().keep(*words)
            sizes[:] = [turn.size for turn in self._kept]
            return kept

    names = "abcdefgh"
    with models.model("gpt_oss", "float32") as model, mock.patch.object(next_turn, "_Turns", Turns):
        sglang_perf_patches.activate("mlx,mlx.next-turn", strict=True)
        gc.collect()
        before = _active_memory()
        player = rig.Player(model, radix=True)
        for number, name in enumerate(names):
            player.join(name, 200 + number)
        for number, name in enumerate(names):
            player.decode(list(names[number:]), 3)
            player.leave(name)
        player.pending.clear()
        results = {"held": _active_memory() - before, "turns": len(sizes), "counted": sum(sizes)}
        del player
        gc.collect()
        sglang_perf_patches.deactivate()
    return results


def _active_memory() -> int:
    import mlx.core as mx

    gc.collect()
    return int(mx.get_active_memory())


def arena_nodes() -> dict[str, Any]:
    """The nodes of a step's graph in a steady batch, stock and patched, by the requests in it."""
    from graphs import primitives

    from sglang_perf_patches.verify.mlx import models, rig

    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model:
        for selection in ("none", "mlx.kv-arena"):
            sglang_perf_patches.activate(selection, strict=True)
            for kind in ("equal", "skewed"):
                for requests in (2, 6):
                    names = list("abcdef")[:requests]
                    player = rig.Player(model)
                    for number, name in enumerate(names):
                        player.join(name, 9 + number * (kind == "skewed"))
                    player.decode(names, 2)
                    nodes = primitives(player, names)
                    results[f"{selection} {kind} {requests}"] = {
                        "all": sum(nodes.values()),
                        "concatenations": nodes["Concatenate"],
                        "zeros": nodes["Full"],
                    }
            sglang_perf_patches.deactivate()
    return results


def installed_release() -> str:
    """The release that is here; if it is only its files, its runner is made importable."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        import mlx_lm  # noqa: F401 -- before the stand-in for PyTorch, which transformers would take

        from sglang_perf_patches.compat import source
        from tests.proof import standalone

        standalone.lend()
        return source.Tree(source.find_installed()).version


def kinds(release: str) -> list[tuple[str, str]]:
    """The models whose layers that release can batch; a mixture of experts in float32 only.

    On a CPU, MLX multiplies by gathered matrices in float32 alone.
    """
    chosen = [("qwen3", "float32"), ("qwen3", "bfloat16")]
    if release != "0.5.11":
        chosen.append(("qwen3_next", "float32"))
    if release == "0.5.23":
        chosen.append(("gpt_oss", "float32"))
    return chosen


def outcome(made: Any) -> dict[str, Any]:
    """What the schedules give and how many nodes a step's graph has, or the error raised."""
    from graphs import primitives

    from sglang_perf_patches.verify.mlx import cases, rig

    player = rig.Player(made)
    schedules: list[Sequence[cases.Step]] = [cases.SCRIPTED]
    schedules += [cases.random_schedule(Random(seed)) for seed in SEEDS]
    results: dict[str, Any] = {}
    try:
        results["played"] = [asdict(player.play(schedule)) for schedule in schedules]
        for who, length in COUNTED.items():
            player.join(who, length)
        results["counted"] = dict(primitives(player, list(COUNTED)))
    except (ValueError, RuntimeError) as error:
        results["raised"] = str(error)
    return results


def calls_of_a_step(made: Any, calls: Counter[str]) -> dict[str, int]:
    """How often one decode step of `COUNTED` calls each counted function."""
    from sglang_perf_patches.verify.mlx import rig

    player = rig.Player(made)
    for who, length in COUNTED.items():
        player.join(who, length)
    calls.clear()
    player.runner.decode_batch(list(COUNTED))
    return dict(calls)


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count the arrays that the attention wrapper's module makes, below what patches put there."""
    wrapper = import_module(wrapper_name())
    core: Any = wrapper.mx
    calls: Counter[str] = Counter()

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

        def array(self, values: Any, dtype: Any) -> Any:
            calls["array of lengths"] += isinstance(values, list)
            return core.array(values, dtype=dtype)

        def arange(self, stop: int) -> Any:
            calls["arange"] += 1
            return core.arange(stop)

        def zeros(self, shape: Any, dtype: Any) -> Any:
            calls["zeros"] += 1
            return core.zeros(shape, dtype=dtype)

        def where(self, *arguments: Any) -> Any:
            calls["where"] += 1
            return core.where(*arguments)

    wrapper.mx = Counting()
    try:
        yield calls
    finally:
        wrapper.mx = core


def judge_as_before_23470() -> None:
    """Let the patches for code before #23470 take 0.5.11 for it, where it was undone in memory."""
    from sglang_perf_patches import sets
    from sglang_perf_patches.compat import source

    tree = source.Tree(source.find_installed())
    (mlx,) = (patch_set for patch_set in sets.load() if patch_set.name == "mlx")
    patches = []
    known = {name: dict(hashes) for name, hashes in mlx.known.items()}
    for patch in mlx.patches:
        if patch.id == "mlx.decode-context":
            (variant,) = (v for v in patch.variants if any("git-" in name for name in v.releases))
            # The class that `undo` changed would rightly count as a conflict.
            depends = [name for name in variant.depends if "BatchedDecodeContext" not in name]
            variant = replace(variant, releases=("0.5.11",), depends=tuple(depends))
            patch = replace(patch, markers=(), variants=(variant,))
            for reference in patch.references():
                definition = tree.definition(reference)
                assert definition is not None
                known[reference] = {definition.digest: ("0.5.11",)}
        patches.append(patch)
    judged = replace(mlx, patches=tuple(patches), known=known)
    sets.load = lambda: (judged,)  # type: ignore[assignment]


def state(patch: str) -> Any:
    """A patch's state in this process."""
    from sglang_perf_patches.live import engine

    report = engine.report()
    assert report is not None
    return report.of(patch)


def wrapper_name() -> str:
    from sglang_perf_patches.sets.mlx.references import WRAPPER

    return WRAPPER
