"""What `mlx.kv-arena` keeps: its buffers, their growth, its pool; and batches that change."""

import gc
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
from job_tools import SEEDS, counts_each_layer, played, primitives, state, verdict_of

import sglang_perf_patches
from sglang_perf_patches.compat import source
from sglang_perf_patches.sets.mlx.kv_arena import arena
from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
from sglang_perf_patches.sets.mlx.kv_arena import choice as arena_choice
from sglang_perf_patches.sets.mlx.kv_arena import moves as arena_moves
from sglang_perf_patches.sets.mlx.kv_arena.step import Step, Writer
from sglang_perf_patches.sets.mlx.pool_write import ATTENTION_POOL, KV_POOL, body, room
from sglang_perf_patches.verify.mlx import cases, models, rig
from sglang_perf_patches.verify.mlx import kv_arena as proof


def small_buffers() -> dict[str, Any]:
    """Batched decodes that cross the end of a buffer; its size is stock's own attribute."""
    many = [cases.SCRIPTED, *(cases.random_schedule(Random(seed)) for seed in SEEDS)]
    equal = [cases.schedule("join a 6, join b 6, chain ab 9")]
    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model:
        for name, schedules in (("many", many), ("equal lengths", equal)):
            results[name] = {
                "stock": outcome_of_growth(model, "none", 8, schedules),
                "all patched": outcome_of_growth(model, "mlx", 8, schedules),
                "wide": outcome_of_growth(model, "none", 1024, schedules),
            }
            # Every step is left to stock's code.
            with mock.patch.object(kv_arena, "_begin", return_value=None):
                results[name]["patched"] = outcome_of_growth(model, "mlx.kv-arena", 8, schedules)
    return results


def outcome_of_growth(
    made: Any, selection: str, tokens: int, schedules: Sequence[Sequence[Any]]
) -> dict[str, Any]:
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


def broken_arena() -> dict[str, Any]:
    """What the case of ``mlx.kv-arena`` says of it, and of it broken in one place at a time."""
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
        "a failed step counts": (Step, "has_served", counts_each_layer),
    }
    return {what: verdict_of(proof, change) for what, change in broken.items()}


def arena_memory() -> dict[str, Any]:
    """Which buffers there are over the life of a batch, in bytes, stock and patched."""
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
    # How much room stock might have: just enough, its first buffers, and no bound.
    results["capacities"] = [
        arena.capacity_for(n, most) for n in range(1, 5000) for most in (n, max(n, 4096), 1 << 30)
    ]
    results["growths"] = _growths()
    return results


def _growths() -> dict[str, int]:
    """Copies of a buffer that grows token by token to 20000 tokens, and how much larger it is."""
    capacity, copies, spare = 0, 0, 0
    for length in range(1, 20_001):
        if length > capacity:
            capacity, copies = arena.capacity_for(length, 1 << 30), copies + 1
            spare = max(spare, capacity - length - length // 16)
    return {"copies": copies, "spare": spare}


def growing_pool(*, episodes: int = 12, steps: int = 60) -> dict[str, Any]:
    """A pool of stock's class under random writes and reads, against an array of all slots.

    The patch pauses now and then, so stock's own code takes the buffers too. Of each way to break
    the growth the first difference; and the least part of the slots that a pool had at the end.
    """
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
    """How often the patched pool looks, by ``memoryview``, through the slots that layers share."""
    looks: list[int] = []

    def counted(slots: Any) -> memoryview:
        looks.append(len(slots))
        return memoryview(slots)

    results: dict[str, Any] = {"layers": models.LAYERS}
    with models.model("qwen3", "float32") as model:
        for selection in ("none", "mlx.pool-write"):
            sglang_perf_patches.activate(selection, strict=True)
            player = rig.Player(model, radix=True)
            played = [asdict(player.play(cases.schedule("join a 300, leave a"), ends=False))]
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


def arena_nodes() -> dict[str, Any]:
    """The nodes of a step's graph in a steady batch, stock and patched, by the requests in it."""
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


def changing() -> dict[str, Any]:
    """By a batch's requests, its counts: it changes at every step, settles, and changes once."""
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
    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model:
        for what, selection in (("stock", "none"), ("patched", "mlx.kv-arena")):
            sglang_perf_patches.activate(selection, strict=True)
            results[what] = _memory_of_a_changing_step(model)
            sglang_perf_patches.deactivate()
    return results


def _memory_of_a_changing_step(made: Any) -> dict[str, int]:
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
    """Requests whose padded rows would take more than stock's buffers, which are made smaller."""
    schedule = cases.schedule("join a 200, join b 5, join c 6, chain abc 3, leave a, chain bc 3")
    results: dict[str, Any] = {}
    with models.model("qwen3", "float32") as model:
        for selection in ("none", "mlx.kv-arena"):
            with mock.patch.object(arena_moves, "STOCK_ROOM", 16):
                results[selection] = played(
                    selection, model, [schedule], kv_arena.COUNTS, "mlx.kv-arena"
                )
    return results
