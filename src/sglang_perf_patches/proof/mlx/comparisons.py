"""Compares stock's runner and the patched one on the same schedules and weights."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import mlx.core as mx

from .. import Different, Inputs, comparing
from ..comparing import differs, live, some
from . import loads, models, playing
from .loads import Step
from .models import Model
from .playing import Played, Player

_FEW = 3


def pool_write(inputs: Inputs) -> int:
    """Prefix hits, prompt chunks, aborts, cleared caches; and that buffers are freed."""
    patch = "mlx.pool-write"
    compared = _episodes(patch, inputs, needs_pool=True)
    kept = {}
    with models.model("qwen3", "float32") as made:
        for live_patches in ((), (patch,)):
            with live(*live_patches) if live_patches else nullcontext():
                kept[bool(live_patches)] = _kept_after(made, 6)
    # In stock the pool pins two buffers per request; the last request's are reused.
    if not kept[True] * 6 <= kept[False]:
        raise Different(
            f"{patch}: {kept[True]} bytes are kept of 6 requests, stock's {kept[False]}"
        )
    return compared


def first_buffer(inputs: Inputs) -> int:
    """The same episodes; prompts and decodes that cross the end of a buffer, alone and batched."""
    patch = "mlx.first-buffer"
    compared = _episodes(patch, inputs)
    crossing = [loads.CROSSING, loads.SCRIPTED]
    with models.model("qwen3", "float32") as made:
        compared += _same(patch, _Play(made, []), crossing)
        compared += _same(patch, _Play(made, [], radix=True), crossing)
        with live(patch):
            player = Player(made)
            player.join("a", 9)
            cache = player.runner._req_caches["a"][0]
            player.join("b", 300)
            player.leave("b")
            released = player.runner._cache_pool[-1][0]
            rooms = [cache.max_seq_len, released.keys.shape[2]]
            player.join("c", 20)
            rooms.append(player.runner._req_caches["c"][0].keys.shape[2])
        # Up to 0.5.14 stock would not grow the released one: it has stock's room, in zeros that
        # nobody has computed, until the next prompt begins.
        if rooms not in ([256, 256, 256], [256, player.runner._max_seq_len, 256]):
            raise Different(f"{patch}: room for {rooms} tokens")
    return compared


def last_row(inputs: Inputs) -> int:
    """The same episodes with each kind of model and of weights, and with sampled tokens."""
    from ...sets.mlx.last_row.body import COUNTS

    patch = "mlx.last-row"
    COUNTS.clear()
    compared = 0
    if playing.has_pool():
        compared += _episodes(patch, inputs)
    else:
        schedules = [_read(schedule) for schedule in inputs(loads.random_schedule)]
        for dtype in ("float32", "bfloat16"):
            with models.model("qwen3", dtype) as made:
                compared += _same(patch, _Play(made, []), schedules)
    if not COUNTS["cut"]:
        raise Different(f"{patch}: {dict(COUNTS)}")
    with models.model("qwen3", "float32", tie_word_embeddings=True) as made:
        compared += _same(patch, _Play(made, []), [_read(loads.SCRIPTED)])
    if _can_sample():
        with models.model("qwen3", "float32") as made:
            compared += _same(patch, _Play(made, [], sampling=True), [loads.SCRIPTED])
    return compared


def next_turn(inputs: Inputs) -> int:
    """Conversations: equal bit by bit where stock reads the same tokens' KV from the pool.

    With a sliding window stock recomputes all these tokens at once; there the logits are close.
    """
    from ...sets.mlx.next_turn.body import COUNTS

    patch = "mlx.next-turn"
    COUNTS.clear()
    hits = [loads.HITTING, loads.TALKING, *inputs(loads.random_hits)]
    hits += inputs(loads.random_episodes)
    compared = 0
    for dtype in some(inputs, ("float32", "bfloat16")):
        with models.model("qwen3", dtype) as made:
            compared += _same(patch, _Play(made, [], radix=True), hits)
            with live(patch, beside=("mlx.kv-arena", "mlx.first-buffer")):
                found = [asdict(Player(made, radix=True).play(schedule)) for schedule in hits]
            expected = [_Play(made, [], radix=True).stock(schedule) for schedule in hits]
            if differs(expected, found):
                raise Different(f"{patch}, beside other patches: {differs(expected, found)}")
    if _can_sample():
        with models.model("qwen3", "float32") as made:
            compared += _same(patch, _Play(made, [], radix=True, sampling=True), [loads.TALKING])
    if not COUNTS["continued"]:
        raise Different(f"{patch}: {dict(COUNTS)}")
    if "gpt_oss" in _further_models():
        with models.model("gpt_oss", "float32") as made:
            before = COUNTS["continued"]
            expected_logits = _logits(made, loads.TALKING)
            with live(patch):
                found_logits = _logits(made, loads.TALKING)
            for number, (one, other) in enumerate(zip(expected_logits, found_logits, strict=True)):
                if not bool(mx.allclose(one, other, rtol=1e-4, atol=1e-4).item()):
                    raise Different(f"{patch}, with a window: logits {number} are not close")
            if COUNTS["continued"] == before:
                raise Different(f"{patch}: no turn was continued with a window")
            compared += len(found_logits)
    return compared


def _logits(made: Model, schedule: Sequence[Step]) -> list[mx.array]:
    """The logits of each forward pass."""
    found: list[mx.array] = []
    player = Player(made, radix=True)
    player.note = found.append
    player.play(schedule)
    return found


def _episodes(patch: str, inputs: Inputs, *, needs_pool: bool = False) -> int:
    """Random episodes with the radix cache, for each kind of model that the release serves.

    `needs_pool`: the patch has no effect where stock has no pool.
    """
    drawn = inputs(loads.random_episodes)
    hits = [loads.HITTING, *inputs(loads.random_hits)]
    compared = 0
    with models.model("qwen3", "float32") as made:
        compared += _same(patch, _Play(made, [], radix=True), [*hits, *drawn])
        without = [loads.SCRIPTED, loads.EXTENDING]
        compared += _same(patch, _Play(made, []), without, ran=not needs_pool)
        if _can_sample():
            sampled = some(inputs, [loads.HITTING, loads.EXTENDING])
            compared += _same(patch, _Play(made, [], radix=True, sampling=True), sampled)
    others = (
        ("qwen3", "bfloat16", False),
        ("qwen3", "bfloat16", True),
        *((name, "float32", False) for name in _further_models()),
    )
    for name, dtype, quantized in some(inputs, others):
        with models.model(name, dtype, quantized=quantized) as made:
            ran = not needs_pool or name != "gpt_oss"  # stock makes no pool for windows
            few = [hits[-1], *drawn[:2]]
            compared += _same(patch, _Play(made, [], radix=True), few, ran=ran)
    return compared


def _kept_after(made: Model, requests: int) -> int:
    """Bytes still in use after a sequence of requests, each with its own prompt."""
    player = Player(made, radix=True)
    player.keeps = False
    player.evaluate_pool()
    gc.collect()
    before: int = mx.get_active_memory()
    for number in range(requests):
        player.join(f"r{number}", 20 + number)
        player.decode([f"r{number}"], 3)
        player.leave(f"r{number}")
    mx.synchronize()
    gc.collect()
    after: int = mx.get_active_memory()
    return after - before


def kv_arena(inputs: Inputs) -> int:
    """Joins, leaves, reorders, chained steps, growth, extension, prefix hits and failed steps."""
    from ...sets.mlx.kv_arena.choice import COUNTS
    from ...sets.mlx.kv_arena.trial import is_proven

    patch = "mlx.kv-arena"
    serves_at_once = is_proven(mx)
    drawn, drawn_hits = inputs(loads.random_schedule), inputs(loads.random_hits)
    changes = inputs(loads.random_changes)
    scripted = [loads.SCRIPTED, loads.GROWING, loads.EXTENDING, loads.CHANGING]
    settling = [loads.SETTLING, *changes]
    served = "steps", "stock steps"
    compared = 0
    with models.model("qwen3", "float32") as made, counted(COUNTS, *served) as batched:
        compared += _same(patch, _Play(made, batched), [*scripted, *drawn])
        if serves_at_once and COUNTS["steps"] < 2 * COUNTS["stock steps"]:
            raise Different(f"{patch}: {dict(COUNTS)}")
    with models.model("qwen3", "float32") as made, counted(COUNTS, *served) as batched:
        compared += _same(patch, _Play(made, batched), settling)
        if serves_at_once and not COUNTS["partings"]:
            raise Different(f"{patch}: no rows were set apart, {dict(COUNTS)}")
    with models.model("qwen3", "float32") as made, counted(COUNTS, *served) as batched:
        hits = [loads.HITTING, *drawn_hits, loads.FAR, *inputs(loads.random_episodes)]
        compared += _same(patch, _Play(made, batched, radix=True), hits)
    with models.model("qwen3", "float32") as made:
        compared += _failing(patch, made)
    with models.model("qwen3", "bfloat16") as made, counted(COUNTS, *served) as batched:
        compared += _same(
            patch,
            _Play(made, batched),
            [*some(inputs, scripted), *drawn[:_FEW], *some(inputs, settling[:_FEW])],
        )
    for name in some(inputs, _further_models()):
        with models.model(name, "float32") as made, counted(COUNTS, *served) as batched:
            compared += _same(
                patch, _Play(made, batched), [*scripted[:2], *drawn[:_FEW], *settling[:_FEW]]
            )
    if _can_sample():
        with models.model("qwen3", "float32") as made, counted(COUNTS, *served) as batched:
            compared += _same(patch, _Play(made, batched, sampling=True), some(inputs, scripted))
    # Where the pool has another dtype, requests that start from its KV have that dtype too, and so
    # do requests that reuse their buffers.
    with (
        models.model("qwen3", "bfloat16", quantized=True) as made,
        counted(COUNTS, *served) as batched,
    ):
        hits = [loads.HITTING, *drawn_hits[:_FEW]]
        compared += _same(patch, _Play(made, batched, radix=True), hits)
    with models.model("qwen3", "float32") as made:
        compared += _growing(patch, made, [loads.SCRIPTED, loads.SETTLING, *drawn])
    with models.model("qwen3", "float32") as made:
        compared += _tried(
            patch, made, [loads.SCRIPTED, loads.GROWING, *drawn[:_FEW], *hits[:_FEW]]
        )
    return compared


def _growing(patch: str, made: Model, schedules: Sequence[Sequence[Step]]) -> int:
    """Buffers that end at once, patched, against wide ones in stock: its own attribute sets it."""
    wide = [_with_buffers(made, 1024, schedule) for schedule in schedules]
    with live(patch):
        grown = [_with_buffers(made, 8, schedule) for schedule in schedules]
    difference = differs(wide, grown)
    if difference:
        raise Different(f"{patch}, where buffers end: {difference}")
    return len(schedules)


def _tried(patch: str, made: Model, schedules: Sequence[Sequence[Step]]) -> int:
    """On a device treated as unproven: the results are equal, and then arenas serve."""
    from ...sets.mlx.kv_arena.choice import COUNTS

    module: Any = import_module("sglang_perf_patches.sets.mlx.kv_arena.body")
    proven, module.is_proven = module.is_proven, lambda _: False
    COUNTS.clear()
    try:
        compared = _same(patch, _Play(made, [], radix=True), schedules)
    finally:
        module.is_proven = proven
    if not COUNTS["tried steps"] or not COUNTS["steps"]:
        raise Different(f"{patch}: on an unproven device {dict(COUNTS)}")
    return compared


def merged_cache(inputs: Inputs) -> int:
    """Joins, leaves, reorders, growth, extension, failed steps; stock handles windows."""
    from ...sets.mlx.merged_cache.body import COUNTS

    patch = "mlx.merged-cache"
    drawn = [_read(schedule) for schedule in inputs(loads.random_schedule)]
    scripted = [_read(schedule) for schedule in (loads.SCRIPTED, loads.GROWING)]
    scripted += [_read(loads.EXTENDING), _read(loads.SETTLING)]
    drawn += [_read(schedule) for schedule in inputs(loads.random_changes)]
    compared = 0
    for dtype in ("float32", "bfloat16"):
        with models.model("qwen3", dtype) as made, counted(COUNTS, "steps", "merges") as batched:
            compared += _same(patch, _Play(made, batched), [*scripted, *drawn])
            if not COUNTS["steps"]:
                raise Different(f"{patch}: every step merged")
        with models.model("qwen3", dtype) as made:
            compared += _failing(patch, made)
    # Lengths stay within the window: mlx-lm before 0.31.2 can't merge longer caches.
    with (
        models.model("gpt_oss", "float32", sliding_window=1024) as made,
        counted(COUNTS, "merges") as batched,
    ):
        schedules = [*scripted[:1], *drawn[:_FEW]]
        compared += _same(patch, _Play(made, batched), schedules, ran=False)
    return compared


def decode_context(inputs: Inputs) -> int:
    """Equal and unequal lengths, with each kind of layer that the release can batch."""
    return _all_models("mlx.decode-context", inputs)


@contextmanager
def counted(counts: Counter[str], *served: str) -> Iterator[list[int]]:
    """Check that the patch counted every batched step under one of these names.

    Yields:
        a list; add the number of batched steps of each schedule, on stock and patched.

    Raises:
        Different: it counted fewer or more.
    """
    counts.clear()
    batched: list[int] = []
    yield batched
    seen = sum(counts[name] for name in served)
    if 2 * seen != sum(batched):
        raise Different(f"{dict(counts)} in {sum(batched) // 2} steps of two or more requests")


def _all_models(patch: str, inputs: Inputs) -> int:
    schedules = [loads.SCRIPTED, *inputs(loads.random_schedule)]
    compared = 0
    kinds = (
        ("qwen3", "float32"),
        ("qwen3", "bfloat16"),
        *((name, "float32") for name in _further_models()),
    )
    for name, dtype in some(inputs, kinds):
        with models.model(name, dtype) as made:
            compared += _same(patch, _Play(made, []), schedules[: None if compared == 0 else 4])
    return compared


@dataclass
class _Play:
    """Plays a schedule on a fresh runner, and adds the number of its batched steps to a list."""

    made: Model
    batched: list[int]
    _: KW_ONLY
    radix: bool = False
    sampling: bool = False

    def __call__(self, schedule: Sequence[Step]) -> dict[str, Any]:
        """Play it with what is live."""
        return self._noted(self._anew(schedule))

    def stock(self, schedule: Sequence[Step]) -> dict[str, Any]:
        """What stock gives, from the first time that this process has played it.

        A model of the same making always has the same weights, and what is kept are digests,
        tokens and counts, so every patch is compared with the same results.
        """
        key = repr((self.made.made_as, self.radix, self.sampling, schedule))
        if key not in _STOCK:
            _STOCK[key] = self._anew(schedule)
        return self._noted(_STOCK[key])

    def _anew(self, schedule: Sequence[Step]) -> Played:
        return Player(self.made, radix=self.radix, sampling=self.sampling).play(schedule)

    def _noted(self, played: Played) -> dict[str, Any]:
        self.batched.append(played.batched)
        return asdict(played)


_STOCK: dict[str, Played] = {}


def _same(patch: str, play: _Play, schedules: Sequence[Sequence[Step]], *, ran: bool = True) -> int:
    """What `comparing.same` does; stock plays a schedule once for all patches."""
    return comparing.same(patch, play, schedules, ran=ran, stock=play.stock)


def _failing(patch: str, made: Model) -> int:
    """A patched run with failing steps, against stock without those steps."""
    without = [step for step in loads.FAILING if step[0] != "fail"]
    expected = _Play(made, []).stock(without)
    with live(patch):
        found = asdict(Player(made).play(loads.FAILING))
    difference = differs(expected, found)
    if difference:
        raise Different(f"{patch}, after a step that failed: {difference}")
    return 1


def _with_buffers(made: Model, tokens: int, schedule: Sequence[Step]) -> dict[str, Any]:
    player = Player(made)
    player.runner._max_seq_len = tokens
    return asdict(player.play(schedule))


def _read(schedule: Sequence[Step]) -> tuple[Step, ...]:
    """The schedule without chained steps: each step is read before the next is built."""
    steps: list[Step] = []
    for step in schedule:
        steps += [("decode", step[1])] * step[2] if step[0] == "chain" else [step]
    return tuple(steps)


def _can_sample() -> bool:
    """Whether the release can sample tokens; it does so by position."""
    return find_spec(playing.SAMPLING) is not None


def _further_models() -> list[str]:
    """Models with the other kinds of layer that the release can batch."""
    caches: Any = import_module("sglang.srt.hardware_backend.mlx.kv_cache")
    found = ["qwen3_next"] if hasattr(caches, "MlxModelCacheLayout") else []
    return [*found, "gpt_oss"] if hasattr(caches, "WindowedAttentionKVCache") else found
