"""What `on_release` plays in an environment with stock sglang of one release."""

# ruff: noqa: F401  (`on_release` finds the jobs of single patches here)

import gc
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import import_module, metadata
from random import Random
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import mlx.core as mx
from arena_jobs import (
    arena_memory,
    arena_nodes,
    broken_arena,
    changing,
    far_apart,
    growing_pool,
    looks_at_slots,
    memory_while_changing,
    small_buffers,
)
from context_jobs import before_23470
from job_tools import RELEASE, other_head, played, state
from row_jobs import broken_groups, broken_prefill, broken_rows, few_rows, restless_stock
from trial_jobs import broken_trial, queued_faults, trials
from turn_jobs import give_windows, kept_turns, whose_turn

import sglang_perf_patches
from sglang_perf_patches import sets
from sglang_perf_patches.compat import source
from sglang_perf_patches.live import engine, wrappers
from sglang_perf_patches.model.patch import module_of
from sglang_perf_patches.sets.mlx import device, last_row
from sglang_perf_patches.verify import Missing, comparing
from sglang_perf_patches.verify.mlx import cases, models, rig
from tests.proof import OF_RUNNER


def off() -> dict[str, Any]:
    if os.environ.get("LOAD_PLUGINS"):
        import_module("sglang.srt.plugins").load_plugins()
    modules = [import_module(name) for name in _patched_modules()]
    results: dict[str, Any] = {
        "plugins": [e.dist.name for e in metadata.entry_points(group="sglang.srt.plugins")],
        "attributes": _described(modules),
    }
    sglang_perf_patches.deactivate()
    before = _held(modules)
    report = sglang_perf_patches.activate(OF_RUNNER, strict=True)
    results["live"] = [patch.id for patch in report.patches if patch.state == "live"]
    results["changed"] = sorted(
        name for name, now in _held(modules).items() if now != before.get(name)
    )
    sglang_perf_patches.deactivate()
    after = _held(modules)
    # The kept objects are alive in `before`, so that equal ids mean the identical object.
    results["differs after"] = sorted(
        name for name in before.keys() | after.keys() if after.get(name) != before.get(name)
    )
    results["attributes after"] = _described(modules)
    return results


def _patched_modules() -> list[str]:
    tree = source.Tree(source.find_installed())
    named = (
        module_of(reference)
        for patch in sets.declared("mlx").patches
        for variant in patch.variants
        for reference in variant.targets + variant.adds + variant.depends
    )
    return [name for name in dict.fromkeys(named) if tree.path(name)]


def _described(modules: Sequence[ModuleType]) -> dict[str, str]:
    """Each attribute in words that are the same in every process, a function by its code."""
    return {name: _words(value) for name, value in _attributes(modules)}


def _held(modules: Sequence[ModuleType]) -> dict[str, tuple[object, ...]]:
    """Each attribute's object by identity, and its code's, its dictionary's and its defaults'."""
    values = {}
    for name, value in _attributes(modules):
        function = wrappers.underlying(value)
        code = getattr(function, "__code__", None)
        own = tuple(sorted(getattr(function, "__dict__", {}))) if code else ()
        values[name] = (_Same(value), _Same(code), own)
    return values


class _Same:
    """Equal to what holds the identical object; this keeps it alive."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def _attributes(modules: Sequence[ModuleType]) -> Iterator[tuple[str, Any]]:
    for module in modules:
        for name, value in vars(module).items():
            if name in {"__builtins__", "__cached__", "__spec__", "__loader__"}:
                continue
            yield f"{module.__name__}:{name}", value
            if isinstance(value, type) and value.__module__ == module.__name__:
                for inner, attribute in vars(value).items():
                    if inner not in {"__dict__", "__weakref__", "__doc__"}:
                        yield f"{module.__name__}:{name}.{inner}", attribute


def _words(value: Any) -> str:
    function = wrappers.underlying(value)
    if isinstance(function, FunctionType):
        code = function.__code__
        shape = [type(value).__name__, function.__qualname__, sorted(vars(function)), _code(code)]
        return hashlib.sha256(repr(shape).encode()).hexdigest()
    if isinstance(value, ModuleType | type):
        return f"{type(value).__name__} {getattr(value, '__module__', '')} {value.__name__}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _code(code: CodeType) -> list[object]:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_filename, code.co_firstlineno, code.co_code.hex(), code.co_names, constants]


def on_cuda() -> dict[str, Any]:
    """The room of a request's buffers where MLX says that it runs on CUDA."""

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


def other_blas() -> dict[str, Any]:
    """A CPU whose products of one row have other bits, as with OpenBLAS, in each dtype.

    Only the products of its probe and of the head: the model does not call them by its name.
    """
    stock_product = mx.matmul

    def product(left: Any, right: Any) -> Any:
        result = stock_product(left, right)
        return result if left.shape[-2] > 1 else result + result

    schedule = cases.schedule("join a 300, join b 310, decode ab")
    results: dict[str, Any] = {"here": last_row.gives_rows_alone(mx)}
    for dtype in ("float32", "bfloat16"):
        with models.model("qwen3", dtype) as model, mock.patch.object(mx, "matmul", product):
            results["there"] = last_row.gives_rows_alone(mx)
            for selection in ("none", "mlx.last-row"):
                with other_head(model, 2):
                    results[f"{dtype} {selection}"] = played(
                        selection, model, [schedule], last_row.COUNTS, "mlx.last-row", radix=True
                    )
    return results


def together() -> dict[str, Any]:
    results: dict[str, Any] = {}
    # The models whose layers that release can batch; on a CPU MLX gathers experts in float32.
    kinds = [("qwen3", "float32"), ("qwen3", "bfloat16")]
    if RELEASE != "0.5.11":
        kinds.append(("qwen3_next", "float32"))
    if RELEASE == "0.5.23":
        kinds.append(("gpt_oss", "float32"))
    for name, dtype in kinds:
        with models.model(name, dtype) as model:
            schedules = [*(cases.random_episodes(Random(seed)) for seed in range(4)), cases.HITTING]
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
    with models.model("qwen3", "float32") as model:
        running = {what: _in_parts(model, what) for what in ("none", "mlx.kv-arena")}
        return {"running": running, "postponed": _postponed_write(model)}


def _in_parts(made: Any, selection: str) -> dict[str, Any]:
    """Requests that run when the patches are to go, what they say, and requests afterwards."""
    player = rig.Player(made, radix=True)
    sglang_perf_patches.activate(selection, strict=True)
    results: dict[str, Any] = {"played": []}

    def play(schedule: str, *, ends: bool = False) -> None:
        results["played"].append(asdict(player.play(cases.schedule(schedule), ends=ends)))

    play("join a 9, join b 12, decode ab 4")
    if selection != "none":
        results["asked"] = _asked_to_leave()
    play("decode ba 3, decode ab, leave a, leave b")
    results["afterwards"] = _live()
    later = "join c 12, join d 9, decode cd 3, leave c, leave d"
    play(f"{later}, hit e a 8 5, hit f b 14 2, chain ef 3", ends=True)
    sglang_perf_patches.deactivate()
    return results


def _postponed_write(made: Any) -> dict[str, Any]:
    """``mlx.pool-write`` is to go between a prompt's forward pass and its write into the pool."""
    results: dict[str, Any] = {"asked": []}
    for selection in ("none", "mlx.pool-write"):
        sglang_perf_patches.activate(selection, strict=True)
        player = rig.Player(made, radix=True)

        def finalize(pending: Any, player: rig.Player = player) -> int:
            del player.runner.prefill_finalize
            results["asked"].append(_asked_to_leave())
            return int(player.runner.prefill_finalize(pending))

        if selection != "none":
            player.runner.prefill_finalize = finalize
        # In two parts, for the second of which it must be gone.
        played = [asdict(player.play(cases.schedule("join a 40"), ends=False))]
        results["afterwards"] = _live()
        rest = cases.schedule("decode a 2, leave a, hit b a 30 5")
        results[selection] = [*played, asdict(player.play(rest))]
        sglang_perf_patches.deactivate()
    return results


def _asked_to_leave() -> str:
    sglang_perf_patches.deactivate()
    return _live()


def _live() -> str:
    """What is live, and what it says."""
    engine.look_again()
    report = engine.report()
    patches = report.patches if report else ()
    return "; ".join(f"{each.id} {each.reason}" for each in patches if each.state == "live")
