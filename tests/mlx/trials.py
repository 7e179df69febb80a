"""What patches do on a device that counts as unproven; on a release's real runner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any
from unittest import mock

import sglang_perf_patches as ours
from sglang_perf_patches.live import engine
from sglang_perf_patches.sets.mlx import grouping
from sglang_perf_patches.sets.mlx.batched_prefill import body
from sglang_perf_patches.sets.mlx.batched_prefill import body as prefill
from sglang_perf_patches.sets.mlx.batched_prefill.passes import Layer
from sglang_perf_patches.sets.mlx.kv_arena import arena_self_check
from sglang_perf_patches.sets.mlx.kv_arena import body as arena
from sglang_perf_patches.sets.mlx.kv_arena.arena import COUNTS
from sglang_perf_patches.sets.mlx.kv_arena.step import Step, Writer
from sglang_perf_patches.verify.mlx import batched_prefill as batches
from sglang_perf_patches.verify.mlx import cases, models, rig
from sglang_perf_patches.verify.mlx.length_groups import groups_at

# Two groups; then, one further token at a time, a long one at the next size of kernels.
GROUPED: tuple[cases.Step, ...] = (
    *(("join", who, length) for who, length in (("a", 600), ("b", 9), ("c", 12))),
    ("chain", "abc", 60),
)
LONGER: tuple[cases.Step, ...] = (
    *(("join", who, length) for who, length in (("d", 1100), ("e", 9), ("f", 12))),
    ("chain", "def", 30),
)
THREE: tuple[cases.Step, ...] = (("join", "a", 20), ("join", "b", 30), ("join", "c", 40))
RESTLESS: tuple[cases.Step, ...] = (
    *THREE,
    *(("chain", order, 3) for order in ("abc", "bca", "cab", "acb") * 10),
    ("chain", "abc", 20),
)
LASTS: tuple[cases.Step, ...] = (*RESTLESS[:-1], ("chain", "abc", 60))
FEW: batches.Batch = [("a", 9, "", 0), ("b", 9, "", 0)]
MANY: batches.Batch = [(who, 40, "", 0) for who in "cdefgh"]


def in_groups() -> dict[str, Any]:
    write = Step.write
    faults: Counter[str] = Counter()

    def wrong(name: str, is_concerned: Callable[[int], bool]) -> Callable[..., Any]:
        def writing(self: Any, index: int, keys: Any, values: Any) -> Any:
            longest = [each.longest for each in self._writers]
            if len(longest) > 1 and is_concerned(max(longest)):
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
        with mock.patch.object(Step, "write", changed), groups_at(32):
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
        return write(self, index, keys, keys if COUNTS["steps"] > 30 else values)

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
    compute = body.compute

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
            with _unproven(), mock.patch.object(body, "compute", changed):
                body.COUNTS.clear()
                ours.activate(selection)
                again: batches.Batch = [(who * 2, *more) for who, *more in MANY]
                played, _ = batches.play(model, (FEW, MANY, again))
                results[what] = {"played": played, "counts": dict(body.COUNTS), **_states()}
                ours.deactivate()
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
            ours.activate("mlx.batched-prefill")
            batches.play(model, (held, behind))
            results[what] = _states()["mlx.batched-prefill"]
            ours.deactivate()
    return results


def _played(selection: str, schedules: Sequence[Sequence[cases.Step]]) -> dict[str, Any]:
    COUNTS.clear()
    grouping.COUNTS.clear()
    with models.model("qwen3", "float32") as model, _unproven():
        ours.activate(selection)
        player = rig.Player(model)
        played = [asdict(player.play(each)) for each in schedules]
        counts = {**COUNTS, "grouped": grouping.COUNTS["steps"]}
        states = _states()
        ours.deactivate()
    return {"played": played, "counts": counts, **states}


@contextmanager
def _unproven() -> Iterator[None]:
    with ExitStack() as stack:
        for body in (prefill, arena):
            stack.enter_context(mock.patch.object(body, "is_proven", return_value=False))
        yield


def _states() -> dict[str, Any]:
    report = engine.report()
    assert report is not None
    of_set = [each for each in report.patches if each.id.startswith("mlx.")]
    return {each.id: [each.state, each.reason] for each in of_set}
