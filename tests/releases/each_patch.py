"""What every patch passes on a released tree; `on_release` plays it, `test_each_patch` judges.

A check leaves the process as it found it, and raises if the patch fails it. ``begin`` comes first,
and ``imported_later`` before any other check, since modules are imported once.
"""

import contextlib
import functools
import gc
import importlib
import logging
import os
import sys
from collections.abc import Iterator
from random import Random
from types import CodeType, FunctionType
from typing import Any

import sglang_perf_patches as ours
from sglang_perf_patches.compat.verdict import Verdict
from sglang_perf_patches.live import engine, wrappers
from sglang_perf_patches.live.executor import executor
from sglang_perf_patches.live.switch import raw
from sglang_perf_patches.live.wrappers import chain
from sglang_perf_patches.model.patching import MISSING
from tests import proof

Held = dict[str, tuple[Any, Any]]
"""A reference → what its owner holds, and `_codes` of that."""

_FIRST = {
    "mamba": ("sglang.srt.managers.scheduler",),
    "mla": ("sglang.srt.speculative.eagle_worker_v2", "sglang.srt.managers.scheduler"),
}
"""What a server imports first, by set; of the others the patches' own modules are the first.

sglang's modules import each other in circles, so a patch may become ready while a module that it
relies on is only half executed.
"""

_applying: dict[str, Verdict] = {}


def begin(patches: list[str]) -> list[str]:
    """Have stand-ins for what a CPU lacks; those of the patches that apply."""
    os.environ["SGLANG_PERF_PATCHES"] = "none"
    logging.getLogger("sglang_perf_patches").setLevel(logging.CRITICAL)
    proof.prepare(patches[0])
    verdicts = [each for each in ours.verdicts() if each.word == "applies"]
    _applying.update({each.patch.id: each for each in verdicts if each.patch.id in patches})
    return list(_applying)


def imported_later() -> dict[str, str]:
    """Activated before any module is there: each patch waits, then goes live; stock's after it."""
    missing: dict[str, str] = {}
    with _live(*_applying) as report:
        states = {each.id: each.state for each in report.patches if each.id in _applying}
        assert set(states.values()) == {"pending"}, states
        for name in _FIRST.get(next(iter(_applying)).partition(".")[0], ()):
            importlib.import_module(name)
        for patch, verdict in _applying.items():
            for module in verdict.variant.modules():
                try:
                    importlib.import_module(module)
                except ImportError as error:  # it needs a GPU's library, or MLX's
                    missing[patch] = f"{module}: {error}"
        for patch in set(_applying) - set(missing):
            assert _state(patch) == "live", engine.report().of(patch)
    for patch in missing:
        del _applying[patch]
    for reference, (_, codes) in _held().items():
        files = [code.co_filename for _, code in codes]
        assert not any("sglang_perf_patches" in file for file in files), reference
    return missing


def on_off_on(patch: str) -> None:
    """On with its modules there, off again and on again: each time all of it or nothing."""
    stock = _held()
    for _ in range(2):
        with _live(patch):
            assert _state(patch) == "live", engine.report().of(patch)
            changed = _changed(stock)
            assert set(_own(patch)) <= changed, set(_own(patch)) - changed
            others = changed - {each for other in (patch, *_needed(patch)) for each in _own(other)}
            assert not others, others
        assert not _changed(stock)


def activated_twice(patch: str) -> None:
    with _live(patch):
        once = _held()
        ours.activate(patch)
        engine.look_again()
        assert not _changed(once)


def wrapped_after(patch: str, reference: str) -> None:
    """Another plugin wraps a target that is patched: both work, and both leave in any order."""
    owner, name = wrappers.owner_of(reference)
    with _live(patch):
        wrapper = _wrapper(raw(owner, name))
        setattr(owner, name, wrapper)
        engine.look_again()
        _require_wrapped(patch)
    assert raw(owner, name) is wrapper, "theirs stays"


def wrapped_before(patch: str, reference: str) -> None:
    """Another plugin wraps a target before it is patched."""
    owner, name = wrappers.owner_of(reference)
    wrapper = _wrapper(raw(owner, name))
    setattr(owner, name, wrapper)
    with _live(patch):
        _require_wrapped(patch)
    assert raw(owner, name) is wrapper, "theirs stays"


def replaced(patch: str, reference: str) -> None:
    """Another plugin replaces a target: theirs wins, and nothing of the patch is left."""
    everything = _held()

    def theirs(*args: Any, **kwargs: Any) -> None:
        raise AssertionError

    with _live(patch):
        setattr(*wrappers.owner_of(reference), theirs)
        engine.look_again()
        assert _lost(patch).state == "conflict", engine.report().of(patch)
        assert _changed(everything) <= {reference} | {
            each for other in _needed(patch) for each in _own(other)
        }
    _put_back(reference, everything[reference])
    assert not _changed(everything)


def undone(patch: str, reference: str) -> None:
    """Stock's own is put back, as a reload does: the patch says so, and comes off as a whole."""
    everything = _held()
    with _live(patch):
        _put_back(reference, everything[reference])
        engine.look_again()
        state = _lost(patch)
        assert (state.state, "stock's own again" in state.reason) == ("conflict", True), state
    assert not _changed(everything)
    with _live(patch):
        assert _state(patch) == "live", engine.report().of(patch)


OF_PATCH = (on_off_on, activated_twice)
OF_TARGET = (wrapped_after, wrapped_before, replaced, undone)
"""They are called with a target that is a plain function, if a patch has one."""


def checks(patch: str) -> dict[str, str | None]:
    """Each check by its name: what it raised, None if the patch passes it."""
    everything = _held()
    targets = _applying[patch].variant.targets
    plain = [name for name in targets if type(everything[name][0]) is FunctionType][:1]
    results: dict[str, str | None] = {}
    for check in (*OF_PATCH, *OF_TARGET):
        results[check.__name__] = None
        try:
            for arguments in [()] if check in OF_PATCH else [(target,) for target in plain]:
                check(patch, *arguments)
        except Exception as error:
            results[check.__name__] = f"{type(error).__name__}: {error}"
        for reference in _changed(everything):
            _put_back(reference, everything[reference])
    return results


def in_any_order(cycles: int) -> int:
    """All patches off one by one and on again, in ten orders: what shows is of those that are on.

    A patch goes off with those that need it, as in a server.

    Returns:
        how often all were off, and stock's code was in each place.
    """
    patches, stock, seen = [*_applying], _held(), 0

    def exchange(order: list[str]) -> bool:
        shown = [
            {each for each in patches if not {each, *_needed(each)} & {*order[:count]}}
            for count in range(1, len(order) + 1)
        ]
        for on in [*shown, *reversed(shown), {*patches}]:
            assert registry.show([registry[each] for each in on])
            assert _changed(stock) == {name for each in on for name in _own(each)}, on
        return True

    with _live(*patches):
        registry: Any = engine._present()
        for seed in range(10):
            order = Random(seed).sample(patches, len(patches))
            for _ in range(cycles):
                # Inside a request, since whoever looks in between would see a patch lost.
                seen += executor.do(functools.partial(exchange, order), wait_s=60)
    assert not _changed(stock)
    return seen


@contextlib.contextmanager
def _live(*patches: str) -> Iterator[Any]:
    try:
        yield ours.activate(",".join(patches))
    finally:
        ours.deactivate()
        if engine.report() is not None:
            gc.collect()
            ours.deactivate()
        assert engine.report() is None, engine.report()


def _state(patch: str) -> str:
    ours.activate()  # looks again
    state: str = engine.report().of(patch).state
    return state


def _lost(patch: str) -> Any:
    """What became of a patch; of the one that it needs, where both lost the same definition."""
    report: Any = engine.report()
    state = report.of(patch)
    for each in _needed(patch) if state.state == "failed" else ():
        if state.reason == f"it needs {each}, which is conflict":
            return report.of(each)
    return state


def _own(patch: str) -> tuple[str, ...]:
    variant = _applying[patch].variant
    return (*variant.targets, *variant.adds)


def _needed(patch: str) -> list[str]:
    needed = [each for each in _applying[patch].patch.requires if each in _applying]
    return [*needed, *(other for each in needed for other in _needed(each))]


def _held() -> Held:
    """What the owners of all definitions of the set's patches hold now."""
    objects: Held = {}
    for patch in _applying:
        for reference in _own(patch):
            owner, name = wrappers.owner_of(reference)
            held = raw(owner, name)
            objects[reference] = (held, _codes(held))
    return objects


def _codes(held: Any) -> list[tuple[FunctionType, CodeType]]:
    return [(link, link.__code__) for link in chain(held) if type(link) is FunctionType]


def _changed(before: Held) -> set[str]:
    """The definitions that are other objects, or have other code, than before."""
    return {
        reference
        for reference, (held, code) in _held().items()
        if held is not before[reference][0] or code != before[reference][1]
    }


def _put_back(reference: str, stock: tuple[Any, Any]) -> None:
    held, codes = stock
    owner, name = wrappers.owner_of(reference)
    if held is MISSING:
        if raw(owner, name) is not MISSING:
            delattr(owner, name)
        return
    for function, code in codes:
        function.__code__ = code
    setattr(owner, name, held)


def _wrapper(inner: Any) -> Any:
    """As a plugin's, which keeps the function's looks."""

    @functools.wraps(inner)
    def around(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    around.__module__ = "their_plugin"
    return around


def _require_wrapped(patch: str) -> None:
    state = engine.report().of(patch)
    assert (state.state, "wrapped by" in state.reason) == ("live", True), state


sys.modules.setdefault("their_plugin", type(sys)("their_plugin"))
