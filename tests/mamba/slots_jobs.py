"""A hybrid model's server with few slots; `on_release` plays it."""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import contextlib
import importlib
import logging
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

from tests.proof import stubs

stubs.lend()

import quick_pages
import sglang

from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.sets.mamba.slot_exhaustion import body
from sglang_perf_patches.verify import Different, comparing
from sglang_perf_patches.verify.mamba.rig import called
from tests.proof.mamba import exhaustion
from tests.proof.mamba.hybrid_parts import MEMORY, Shape, trees
from tests.proof.mamba.hybrid_server import HybridServer

quick_pages.lend()

KINDS = [(tree, tracked) for tracked in (True, False) for tree in trees()]
FEW = {"late": 4, "hosted": 6}
"""One buffer of two that is taken when it is needed; the slots of a state that comes back."""
SHORT = (exhaustion.short_of_rows, exhaustion.short_of_copies)


def deaths() -> Any:
    """Where stock asserts, and which requests the patched server serves."""
    return [{"kind": kind, **_death(make, *kind)} for make in SHORT for kind in KINDS]


def _both(make: Callable[..., HybridServer], *kind: Any) -> tuple[Any, Any, bool]:
    """What stock told and what the patched server did, and whether that served all requests."""
    stock = exhaustion.drained(make(*kind))
    with comparing.live(exhaustion.PATCH, ran=None):
        server = make(*kind)
        patched = exhaustion.drained(server)
    return stock, patched, len(server.ended) == server._made


def _death(make: Callable[..., HybridServer], *kind: Any) -> dict[str, Any]:
    stock, patched, served = _both(make, *kind)
    return {
        "load": make.__name__,
        "stock": [stock.died, stock.where],
        "patched": patched.died,
        "same": patched.log[: len(stock.log)] == stock.log,
        "served": served,
    }


def hosted_deaths() -> Any:
    return [_death(make) for make in exhaustion.HOSTED]


def called_off() -> Any:
    """A load that is called off, with a state left on the device: what stock and patched say."""
    told = []
    for patches in ((), (exhaustion.PATCH,)):
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(comparing.live(patch, ran=None))
            server = exhaustion.short_of_the_last_state()
            try:
                told.append(exhaustion.drained(server).died or sum(server.found["r4"]))
            except Different as wrong:
                told.append(str(wrong))
    return told


def own_prefixes() -> Any:
    """Whether a request ends that only the state of its own prefix keeps out: stock and patched."""
    results = []
    for kind in KINDS:
        stock = exhaustion.drained(exhaustion.short_of_its_prefix(*kind)).died
        with comparing.live(exhaustion.PATCH):
            server = exhaustion.short_of_its_prefix(*kind)
            patched = exhaustion.drained(server).died
        results.append([stock, patched, server.ended])
    return results


def kept_slots() -> Any:
    """A request that lacks KV keeps the slot of its match: where stock dies, and who is served."""
    results = []
    for kind in KINDS:
        stock, patched, served = _both(exhaustion.short_of_tokens, *kind)
        results.append(
            {
                "stock": [stock.died, stock.where],
                "patched": patched.died,
                "same": stock.died or stock.log == patched.log,
                "kept": [stock.slot_kept, patched.slot_kept],
                "served": served,
            }
        )
    return results


def waits() -> Any:
    """An idle server that lacks slots: what it says, and that it goes on when it has them."""
    results = []
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    body.logger.addHandler(handler)
    for tree in trees():
        stock = exhaustion.drained(_too_few_slots(tree)).died
        with comparing.live(exhaustion.PATCH):
            lines.clear()
            server = _too_few_slots(tree)
            for _ in range(20):
                server.step()
            waiting = [req.rid for req in server.waiting]
            server.abort(server.waiting[0])
            server.check_drained()
            results.append(
                {"stock": stock, "waiting": waiting, "said": list(lines), **_locked(tree, lines)}
            )
    return results


def _too_few_slots(tree: str) -> HybridServer:
    """A request that can never have its slots."""
    server = HybridServer(Shape(tree, tracked=True, slots=2, rows=1))
    server.submit([11] * 128, 3)
    return server


def _lock(server: HybridServer, ids: list[int]) -> Callable[[], None]:
    """Lock the node of a cached prefix, as a transfer does; returns what unlocks it."""
    memory = importlib.import_module(f"{MEMORY}.radix_cache")
    kinds = importlib.import_module(f"{MEMORY}.base_prefix_cache")
    batches = importlib.import_module("sglang.srt.managers.schedule_batch")
    kept: Any = array("q", ids) if hasattr(batches, "array") else list(ids)
    key = called(memory.RadixKey, token_ids=kept, extra_key=None)
    node = server.tree.match_prefix(kinds.MatchPrefixParams(key=key)).last_device_node
    locked = server.tree.inc_lock_ref(node)
    given = [locked.to_dec_params()] if hasattr(locked, "to_dec_params") else []
    return lambda: server.tree.dec_lock_ref(node, *given)


def _locked(tree: str, said: list[str]) -> dict[str, Any]:
    """The only slot is a cached state's, which someone else locks for a while."""
    server = HybridServer(Shape(tree, tracked=False, slots=1, rows=1))
    server.submit([11] * 40, 1)
    server.drain()
    said.clear()
    unlock = _lock(server, [11] * 40)
    req = server.submit([50] * 40, 3)
    for _ in range(5):
        server.step()
    waited = req in server.waiting and not server.running.reqs
    unlock()
    server.drain()
    server.check_drained()
    return {"waited": waited, "said of locks": list(said), "served": req.rid in server.ended}


def broken() -> Any:
    """What the episodes say of the patch with a part broken on purpose."""
    seeds = range(40)
    exhaustion.alike(seeds)  # it is right before
    needed, obtainable = body.needed, body.obtainable
    breaks: dict[str, tuple[str, Callable[..., Any]]] = {
        "no assertion is known": ("_is_exhausted", lambda _: False),
        "none is refused": ("_lacks_slots", lambda *_: False),
        "all can be had": ("obtainable", lambda tree: obtainable(tree) + 1),
        "less can be had": ("obtainable", lambda tree: obtainable(tree) - 1),
        "no room is made": ("_makes_room", lambda *_: True),
        "too little is needed": ("needed", lambda *given: needed(*given) - 1),
    }
    if sglang.__version__ == "0.5.9":
        breaks["a slot stays"] = ("_return_slot", lambda *_: False)
    errors = {}
    for name, (function, wrong) in breaks.items():
        with mock.patch.object(body, function, wrong):
            try:
                errors[name] = f"equal: {dict(exhaustion.alike(seeds))}"
                own_prefixes()
            except (AssertionError, RuntimeError) as different:
                errors[name] = f"different: {different}"
    return errors


def broken_for_others() -> Any:
    """What is said of servers with a host's cache or late buffers, with their part broken."""
    errors = {"loads": "", "copies": "", "late buffers": ""}
    with mock.patch.object(body, "_lacks_slots_to_load", return_value=False):
        errors["loads"] = _death(exhaustion.short_of_loads)["patched"]
    with mock.patch.object(body, "_copy_last_on_device"):
        errors["copies"] = called_off()[1]
    needed = body.needed
    with mock.patch.object(body, "needed", lambda pool, reqs: needed(pool, reqs) + len(reqs)):
        try:  # as with two buffers
            exhaustion.alike(range(30), draw=exhaustion.late)
        except AssertionError as different:
            errors["late buffers"] = str(different)
    return errors


def episodes(count: int, draw: str = "shape", first: int = 0) -> Any:
    """Where stock died in how many of the episodes, in all of which the patch is right.

    `draw` names what draws their servers, in `exhaustion`; `first` is the seed of the first.
    """
    return dict(exhaustion.alike(range(first, first + count), draw=getattr(exhaustion, draw)))


def few_episodes() -> Any:
    return {draw: episodes(count, draw) for draw, count in FEW.items()}


def together(selections: list[list[str]], seed: int, count: int) -> Any:
    """As `episodes`, with each of these selections live too and requests that lack KV."""
    for patch in {patch for others in selections for patch in others}:
        for variant in by_id(sets.load())[patch].variants:
            if sglang.__version__ in variant.releases:
                for module in variant.modules():
                    importlib.import_module(module)
    counts: Counter[str] = Counter()
    for number, others in enumerate(selections):
        first = seed + number * count
        counts += exhaustion.alike(range(first, first + count), others, more=(300,))
    return dict(counts)
