"""What patches do on a device that counts as unproven, also with faults that only a queue shows."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any
from unittest import mock

import mlx.core as mx
from job_tools import RELEASE, played
from mlx.utils import tree_flatten

import sglang_perf_patches
from sglang_perf_patches.live import engine
from sglang_perf_patches.sets.mlx import grouping
from sglang_perf_patches.sets.mlx.batched_prefill import body as prefill
from sglang_perf_patches.sets.mlx.batched_prefill.passes import Layer
from sglang_perf_patches.sets.mlx.kv_arena import arena_self_check, choice
from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
from sglang_perf_patches.sets.mlx.kv_arena import moves as arena_moves
from sglang_perf_patches.sets.mlx.kv_arena.step import GroupedStep, Writer
from sglang_perf_patches.verify.mlx import batches, cases, models, rig
from sglang_perf_patches.verify.mlx.length_groups import groups_at

# Two groups; then, one further token at a time, a long one at the next size of kernels.
GROUPED = cases.schedule("join a 600, join b 9, join c 12, chain abc 60")
LONGER = cases.schedule("join d 1100, join e 9, join f 12, chain def 30")
THREE = cases.schedule("join a 20, join b 30, join c 40")
_ORDERS = cases.schedule("chain abc 3, chain bca 3, chain cab 3, chain acb 3")
RESTLESS = (*THREE, *_ORDERS * 10, ("chain", "abc", 20))
LASTS = (*RESTLESS[:-1], ("chain", "abc", 60))
FEW: batches.Batch = [("a", 9, "", 0), ("b", 9, "", 0)]
MANY: batches.Batch = [(who, 40, "", 0) for who in "cdefgh"]


def broken_trial() -> dict[str, Any]:
    """Arenas that give other values: what happens."""
    write = Writer.write

    def wrong_token(self: Any, layer: Any, keys: Any, values: Any) -> Any:
        return write(self, layer, keys, keys)

    schedules = [cases.SCRIPTED, cases.HITTING, cases.GROWING]
    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model, _unproven():
        for what, selection, changed in (
            ("stock", "none", write),
            ("broken", "mlx.kv-arena", wrong_token),
            ("whole", "mlx.kv-arena", write),
        ):
            with mock.patch.object(Writer, "write", changed):
                results[what] = played(
                    selection, model, schedules, kv_arena.COUNTS, "mlx.kv-arena", radix=True
                )
    return results


def queued_faults() -> dict[str, Any]:
    """A device that is wrong where a step is queued behind another one.

    Stock, patched on a device without a fault, with each fault, and with a fault while the patch
    waits for every step that it compares.
    """
    short = cases.schedule("join a 9, join b 9, chain ab 22, join c 12, chain cab 22")
    longer = cases.schedule("join a 300, join b 300, chain ab 22")
    check = arena_self_check.ArenaSelfCheck
    end_step = check.end_step

    def waits(self: Any) -> None:
        end_step(self)
        mx.synchronize()

    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model, _unproven():
        device = _Device(model)
        for what, selection, fault in (
            ("stock", "none", ""),
            ("none", "mlx.kv-arena", ""),
            *((fault, "mlx.kv-arena", fault) for fault in _Device.FAULTS),
            ("waits", "mlx.kv-arena", "queued"),
        ):
            schedules = [short, longer] if what in {"stock", "none", "longer"} else [short]
            ends = waits if what == "waits" else end_step
            with device.faulty(fault), mock.patch.object(check, "end_step", ends):
                results[what] = played(selection, model, schedules, kv_arena.COUNTS, "mlx.kv-arena")
                results[what]["faults"] = device.faults
    return results


class _Device:
    """A device on which arenas go wrong in steps queued behind one that nobody has waited for."""

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
        queue = mx.async_eval

        def queued(*arrays: Any) -> None:
            self._number += 1
            for _, array in tree_flatten(arrays):
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


def trials() -> dict[str, Any]:
    results = {"in groups": in_groups(), "restless": restless(), "late": late()}
    if RELEASE == "0.5.23":
        results["prompts"] = prompts()
        results["mistakes"] = mistakes()
    return results


def in_groups() -> dict[str, Any]:
    write = GroupedStep.write
    faults: Counter[str] = Counter()

    def wrong(name: str, is_concerned: Callable[[int], bool]) -> Callable[..., Any]:
        def writing(self: Any, index: int, keys: Any, values: Any) -> Any:
            if is_concerned(max(each.longest for each in self._writers)):
                faults[name] += 1
                values = keys
            return write(self, index, keys, values)

        return writing

    results: dict[str, Any] = {}
    for what, selection, changed in (
        ("stock", "none", write),
        ("whole", "mlx.length-groups", write),
        ("faulty", "mlx.length-groups", wrong("faulty", lambda _: True)),
        ("longer", "mlx.length-groups", wrong("longer", lambda longest: longest > 1023)),
    ):
        with mock.patch.object(GroupedStep, "write", changed), groups_at(32):
            results[what] = _played(selection, [GROUPED, LONGER]) | {"faults": faults[what]}
    return results


def restless() -> dict[str, Any]:
    """A batch that changes every three steps, and then settles, for long too: stock and patched."""
    return {
        what: {each: _played(each, [schedule]) for each in ("none", "mlx.kv-arena")}
        for what, schedule in (("settles", RESTLESS), ("lasts", LASTS))
    }


def late() -> dict[str, Any]:
    """A batch whose arena goes wrong long after it was tried, or never does."""
    write = Writer.write

    def wrong(self: Any, index: int, keys: Any, values: Any) -> Any:
        return write(self, index, keys, keys if choice.COUNTS["steps"] > 30 else values)

    schedule = (*THREE, ("chain", "abc", 120))
    results: dict[str, Any] = {}
    with mock.patch.object(arena_self_check, "EVERY", 20):
        for what, selection, changed in (
            ("stock", "none", write),
            ("whole", "mlx.kv-arena", write),
            ("faulty", "mlx.kv-arena", wrong),
        ):
            with mock.patch.object(Writer, "write", changed):
                results[what] = _played(selection, [schedule])
    return results


def prompts() -> dict[str, Any]:
    compute = prefill.compute

    def wrong(core: Any, masks: Any, runner: Any, group: Any) -> Any:
        computed = compute(core, masks, runner, group)
        if len(computed) <= 4:
            return computed
        return [
            replace(row, layers=[(keys, values * 2) for keys, values in row.layers])
            for row in computed
        ]

    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model:
        for what, selection, changed in (
            ("stock", "none", compute),
            ("whole", "mlx.batched-prefill", compute),
            ("faulty", "mlx.batched-prefill", wrong),
        ):
            with _unproven(), mock.patch.object(prefill, "compute", changed):
                prefill.COUNTS.clear()
                sglang_perf_patches.activate(selection)
                again: batches.Batch = [(who * 2, *more) for who, *more in MANY]
                played, _ = batches.play(model, (FEW, MANY, again))
                results[what] = {"played": played, "counts": dict(prefill.COUNTS), **_states()}
                sglang_perf_patches.deactivate()
    return results


def mistakes() -> dict[str, Any]:
    """The states of the patch when masks or positions of all its passes are wrong."""
    offset = Layer.offset.fget  # type: ignore[attr-defined]

    def seen(self: Any, tokens: int, return_array: bool = False, **window: Any) -> Any:
        return self._masks.make_attention_mask(tokens, self._held, return_array, **window)

    results: dict[str, Any] = {}
    held: batches.Batch = [("a", 400, "", 0), ("b", 391, "", 0)]
    behind: batches.Batch = [("c", 60, "a", 402), ("d", 61, "b", 393)]
    for what, dtype, name, changed in (
        ("none", "bfloat16", "offset", Layer.offset),
        ("a position too far", "bfloat16", "offset", property(lambda self: offset(self) + 1)),
        ("padding is seen", "float32", "make_mask", seen),
    ):
        with models.model("qwen3", dtype) as model, mock.patch.object(Layer, name, changed):
            sglang_perf_patches.activate("mlx.batched-prefill")
            batches.play(model, (held, behind))
            results[what] = _states()["mlx.batched-prefill"]
            sglang_perf_patches.deactivate()
    return results


def _played(selection: str, schedules: Sequence[Sequence[cases.Step]]) -> dict[str, Any]:
    choice.COUNTS.clear()
    grouping.COUNTS.clear()
    with models.model("qwen3", "float32") as model, _unproven():
        sglang_perf_patches.activate(selection)
        player = rig.Player(model)
        played = [asdict(player.play(each)) for each in schedules]
        counts = {**choice.COUNTS, "grouped": grouping.COUNTS["steps"]}
        states = _states()
        sglang_perf_patches.deactivate()
    return {"played": played, "counts": counts, **states}


@contextmanager
def _unproven() -> Iterator[None]:
    """The device counts as one on which neither arenas nor prompts together were proven."""
    unproven = {"is_proven": lambda *_: False}
    with mock.patch.multiple(prefill, **unproven), mock.patch.multiple(kv_arena, **unproven):
        yield


def _states() -> dict[str, Any]:
    report = engine.report()
    assert report is not None
    of_set = [each for each in report.patches if each.id.startswith("mlx.")]
    return {each.id: [each.state, each.reason] for each in of_set}
