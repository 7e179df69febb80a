"""What a step of stock calls, before and after #23470, and `mlx.decode-context`."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from random import Random
from typing import Any

from job_tools import SEEDS, primitives, state

import sglang_perf_patches
from sglang_perf_patches import sets
from sglang_perf_patches.compat import source
from sglang_perf_patches.sets.mlx.references import WRAPPER
from sglang_perf_patches.verify.mlx import cases, models, rig

# What a request is called when a graph is counted → its prompt's length.
COUNTED = {"a": 5, "b": 9, "c": 9, "d": 12}


def before_23470() -> dict[str, Any]:
    """0.5.11 as it is, with #23470 undone, and with the patch on top of that.

    A tree from before #23470, given by PYTHONPATH, has nothing to undo and is judged as it is.
    """
    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model, counted_calls() as calls:

        def outcome_of(what: str) -> None:
            results[what] = outcome(model)
            results[what]["calls"] = calls_of_a_step(model, calls)

        outcome_of("released")
        wrapper = import_module(WRAPPER)
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


def outcome(made: Any) -> dict[str, Any]:
    player = rig.Player(made)
    schedules = [cases.SCRIPTED, *(cases.random_schedule(Random(seed)) for seed in SEEDS)]
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
    player = rig.Player(made)
    for who, length in COUNTED.items():
        player.join(who, length)
    calls.clear()
    player.runner.decode_batch(list(COUNTED))
    return dict(calls)


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Count the arrays that the attention wrapper's module makes, below what patches put there."""
    wrapper = import_module(WRAPPER)
    core: Any = wrapper.mx
    calls: Counter[str] = Counter()

    class Counting:
        def __getattr__(self, name: str) -> Any:
            function = getattr(core, name)

            def counted(*arguments: Any, **options: Any) -> Any:
                # Of `array`, the calls that make an array of lengths.
                calls[name] += name != "array" or isinstance(arguments[0], list)
                return function(*arguments, **options)

            return counted if name in {"array", "arange", "zeros", "where"} else function

    wrapper.mx = Counting()
    try:
        yield calls
    finally:
        wrapper.mx = core


def undo(wrapper: Any) -> None:
    """Leave 0.5.11's decode context its own fields: a layer that asks for more makes it anew."""

    def array(values: list[int]) -> Any:
        return wrapper.mx.array(values, dtype=wrapper.mx.int32)

    context = wrapper.BatchedDecodeContext
    context.__post_init__ = lambda self: None
    context.offsets = property(lambda self: array(self.seq_lens))
    context.valid_lens = property(lambda self: array([n + 1 for n in self.seq_lens]))
    context.positions = property(lambda self: wrapper.mx.arange(max(self.seq_lens) + 1))
    context.max_len = property(lambda self: max(self.seq_lens) + 1)
    context.needs_padding = property(lambda self: min(self.seq_lens) < max(self.seq_lens))
    context.pad_sizes = property(lambda self: [max(self.seq_lens) - n for n in self.seq_lens])


def judge_as_before_23470() -> None:
    """Let the patches for code before #23470 take 0.5.11 for it, where it was undone in memory."""
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
