"""Runs in an environment with stock sglang of one release; prints one line of JSON.

``worker.py PART``, where PART is the name of one of the functions below.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

# What a request is called when a graph is counted → its prompt's length.
COUNTED = {"a": 5, "b": 9, "c": 9, "d": 12}
# Beyond the window of the model that has one.
COUNTED_LONG = {"a": 5, "b": 20, "c": 31, "d": 12}

SEEDS = range(6)


def equivalence() -> dict[str, Any]:
    """Each model: stock, patched, broken, and stock again, in one process."""
    import playing

    import sglang_perf_patches
    from sglang_perf_patches.sets.mlx.step_arrays import StepArrays

    found: dict[str, Any] = {}
    for name, dtype in models(metadata.version("sglang")):
        with playing.model(name, dtype) as folder:
            of_model: dict[str, Any] = {"stock": outcome(folder)}
            sglang_perf_patches.activate("mlx.step-mask", strict=True)
            of_model["patched"] = outcome(folder)
            of_model["state"] = asdict(state("mlx.step-mask"))
            with never_shared(StepArrays):
                of_model["never shared"] = outcome(folder)
            with kept_too_long(StepArrays, by_shape=False):
                of_model["kept too long"] = outcome(folder)
            with kept_too_long(StepArrays, by_shape=True):
                of_model["kept too long by shape"] = outcome(folder)
            sglang_perf_patches.deactivate()
            of_model["again"] = outcome(folder)
            found[f"{name} {dtype}"] = of_model
    return found


def crossing_4096() -> dict[str, Any]:
    """A batched decode that crosses the end of stock's buffer, and patched where stock fails."""
    import playing

    schedule = [("join", "a", 4093), ("join", "b", 40), ("chain", "ba", 9)]
    with playing.model("qwen3", "float32") as folder:
        found = {"stock": outcome_of_growth(folder, "none", None, [schedule])}
        if "raised" in found["stock"]:
            selection = "mlx.cache-growth"
            found["patched"] = outcome_of_growth(folder, selection, None, [schedule])
    return found


def small_buffers() -> dict[str, Any]:
    """Many batched decodes that cross the end of a buffer, and the same in wide buffers.

    The size is stock's own attribute, set lower.
    """
    import playing

    many = [playing.SCRIPTED, *(playing.random_schedule(seed) for seed in SEEDS)]
    equal = [[("join", "a", 6), ("join", "b", 6), ("chain", "ab", 9)]]
    found: dict[str, Any] = {}
    with playing.model("qwen3", "float32") as folder:
        for name, schedules in (("many", many), ("equal lengths", equal)):
            found[name] = {
                "stock": outcome_of_growth(folder, "none", 8, schedules),
                "patched": outcome_of_growth(folder, "mlx.cache-growth", 8, schedules),
                "all patched": outcome_of_growth(folder, "mlx", 8, schedules),
                "wide": outcome_of_growth(folder, "none", 1024, schedules),
            }
    return found


def outcome_of_growth(
    model: Path, selection: str, tokens: int | None, schedules: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """What schedules give with buffers of so many tokens, or of stock's size."""
    import playing

    import sglang_perf_patches

    sglang_perf_patches.activate(selection, strict=True)
    player = playing.Player(model)
    if tokens is not None:
        player.runner._max_seq_len = tokens
    found: dict[str, Any] = {"buffer": player.runner._max_seq_len}
    try:
        found["played"] = [asdict(player.play(schedule)) for schedule in schedules]
    except ValueError as error:
        found["raised"] = str(error)
    found["state"] = asdict(state("mlx.cache-growth"))
    sglang_perf_patches.deactivate()
    return found


def before_23470() -> dict[str, Any]:
    """0.5.11 as it is, with #23470 undone, and with the patch on top of that.

    A tree from before #23470, given by PYTHONPATH, has nothing to undo and is judged as it is.
    """
    import playing
    from before_23470 import undo

    import sglang_perf_patches

    found: dict[str, Any] = {}
    with playing.model("qwen3", "float32") as folder, counted_calls() as calls:

        def outcome_of(what: str) -> None:
            found[what] = outcome(folder)
            found[what]["calls"] = calls_of_a_step(folder, calls)

        outcome_of("released")
        wrapper = import_module(wrapper_name())
        if hasattr(wrapper.BatchedDecodeContext, "__post_init__"):
            undo(wrapper)
            outcome_of("undone")
            judge_as_before_23470()
        for selection in ("mlx.decode-context", "mlx.decode-context, mlx.step-mask"):
            sglang_perf_patches.activate(selection, strict=True)
            outcome_of(selection)
            found[selection]["state"] = asdict(state("mlx.decode-context"))
            sglang_perf_patches.deactivate()
        outcome_of("again")
    return found


def off() -> dict[str, Any]:
    """What the patched modules hold, with the plugin as the environment has it."""
    from attributes import describe, held, patched_modules
    from sglang.srt.plugins import load_plugins

    import sglang_perf_patches

    if os.environ.get("LOAD_PLUGINS"):
        load_plugins()
    modules = [import_module(name) for name in patched_modules()]
    found: dict[str, Any] = {
        "plugins": [e.dist.name for e in metadata.entry_points(group="sglang.srt.plugins")],
        "attributes": describe(modules),
    }
    sglang_perf_patches.deactivate()
    before = held(modules)
    report = sglang_perf_patches.activate("mlx", strict=True)
    found["live"] = [patch.id for patch in report.patches if patch.state == "live"]
    found["changed"] = sorted(name for name, now in held(modules).items() if now != before[name])
    sglang_perf_patches.deactivate()
    after = held(modules)
    # The kept objects are alive in `before`, so that equal ids mean the identical object.
    found["differs after"] = sorted(
        name for name in before.keys() | after.keys() if after.get(name) != before.get(name)
    )
    found["attributes after"] = describe(modules)
    return found


def models(release: str) -> list[tuple[str, str]]:
    """The models whose layers that release can batch; a mixture of experts in float32 only.

    On a CPU, MLX multiplies by gathered matrices in float32 alone.
    """
    chosen = [("qwen3", "float32"), ("qwen3", "bfloat16")]
    if release != "0.5.11":
        chosen.append(("qwen3_next", "float32"))
    if release == "0.5.23":
        chosen.append(("gpt_oss", "float32"))
    return chosen


def outcome(model: Path) -> dict[str, Any]:
    """What the schedules give and how many nodes the graph of a step has, or what was raised."""
    import playing

    player = playing.Player(model)
    schedules: list[Sequence[playing.Step]] = [playing.SCRIPTED]
    schedules += [playing.random_schedule(seed) for seed in SEEDS]
    found: dict[str, Any] = {}
    try:
        found["played"] = [asdict(player.play(schedule)) for schedule in schedules]
        for name, batch in (("counted", COUNTED), ("counted long", COUNTED_LONG)):
            for who, length in batch.items():
                player.join(who, length)
            found[name] = dict(player.primitives(list(batch)))
            for who in batch:
                player.leave(who)
    except (ValueError, RuntimeError) as error:
        found["raised"] = str(error)
    return found


def calls_of_a_step(model: Path, calls: Counter[str]) -> dict[str, int]:
    """How often one decode step of `COUNTED` calls each counted function."""
    import playing

    player = playing.Player(model)
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


@contextmanager
def never_shared(step_arrays: Any) -> Iterator[None]:
    """The patch broken: each layer makes its own."""
    with replaced(step_arrays, "kept", lambda self: {}):
        yield


@contextmanager
def kept_too_long(step_arrays: Any, *, by_shape: bool) -> Iterator[None]:
    """The patch broken: a step is given the mask and the padding of an earlier one."""

    class ByFunction(dict[Any, Any]):
        def __contains__(self, key: Any) -> bool:
            return super().__contains__(key[0])

        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(key[0])

        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key[0], value)

    kept: dict[Any, Any] = {} if by_shape else ByFunction()
    with replaced(step_arrays, "kept", lambda self: kept):
        yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another attribute for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def judge_as_before_23470() -> None:
    """Let the patches for code before #23470 take 0.5.11, where it was undone in memory, for it."""
    from sglang_perf_patches import sets, source

    tree = source.Tree(source.find_installed())
    (mlx,) = (patch_set for patch_set in sets.load() if patch_set.name == "mlx")
    patches = []
    known = {name: dict(hashes) for name, hashes in mlx.known.items()}
    for patch in mlx.patches:
        if patch.id != "mlx.cache-growth":
            (variant,) = (v for v in patch.variants if any("git-" in name for name in v.releases))
            # The class that `undo` changed would rightly be a conflict.
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
    from sglang_perf_patches import activation

    report = activation.report()
    assert report is not None
    return report.of(patch)


def wrapper_name() -> str:
    from sglang_perf_patches.sets.mlx.step_arrays import WRAPPER

    return WRAPPER


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
