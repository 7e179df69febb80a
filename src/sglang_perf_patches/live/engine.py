"""Patches on and off in this process: `activate_now`, `deactivate_now`, `report`."""

from __future__ import annotations

import logging

from .. import sets
from ..compat import source
from ..compat.verdict import judge_each
from ..model import selection, switch
from ..model.patch import by_id
from ..model.state import Observer, Report
from .registry import Registry

logger = logging.getLogger("sglang_perf_patches")

_current: list[Registry] = []  # at most one; a container, so that nothing rebinds it


def activate_now(
    text: str | None,
    *,
    strict: bool | None = None,
    tree: source.Tree | None = None,
    observer: Observer | None = None,
) -> Report:
    """See `sglang_perf_patches.activate`; to be called inside a request of the executor.

    `tree` is the installed sglang, if it was read before; `observer` hears of what happens then.
    """
    registry = _started(text, strict=strict, tree=tree)
    registry.look()
    if observer and registry.selection.ids and not (registry.observer or registry.end):
        registry.observer = observer
        try:
            observer.keep(_recorded, look_again)
        except Exception:
            line = "sglang-perf-patches: `status` will not show this process"
            logger.warning(line, exc_info=True)
    return registry.report()


def deactivate_now() -> None:
    """See `sglang_perf_patches.deactivate`; to be called inside a request of the executor."""
    registry = _present()
    if registry is None:
        return
    registry.stop()
    registry.look()
    if not registry.is_ended and (waits_for := registry.waits_for()):
        logger.warning("sglang-perf-patches: deactivate() waits: %s", waits_for)


def _present() -> Registry | None:
    return next((registry for registry in list(_current) if not registry.is_ended), None)


def report() -> Report | None:
    """See `sglang_perf_patches.report`."""
    registry = _present()
    return registry.report() if registry else None


def _recorded() -> Report | None:
    # A process that a lost patch ends records nothing: the line about that patch is its only one,
    # but another thread may log gates before it.
    registry = _present()
    return None if registry is None or registry.loss else registry.report()


def look_again() -> None:
    """Check every patch of this process; the recorder calls this once a second."""
    registry = _present()
    if registry is not None:
        registry.look_again()


def _started(text: str | None, *, strict: bool | None, tree: source.Tree | None) -> Registry:
    """The present registry, which the first call decided, else a new one with its verdicts.

    It warns if a later call selects other patches than the first one, or raises SelectionError.
    """
    registry = _present()
    if registry is not None and registry.end:
        registry.look()  # it was stopped, but something kept a patch on: try again
        registry = _present()
    if registry is not None and text is None:
        return registry
    patches = by_id(sets.load())
    try:
        chosen = selection.parse(switch.from_environment() if text is None else text, patches)
    except selection.SelectionError as error:
        if registry is None:
            raise
        first = f"and the first call has decided already, for {registry.selection.text!r}"
        raise selection.SelectionError(f"{error} ({first})") from None
    if registry is not None:
        if chosen.ids != registry.selection.ids:
            line = "sglang-perf-patches: %r changes nothing: the first call decided, for %r"
            logger.warning(line, text, registry.selection.text)
        return registry
    strict = switch.is_strict() if strict is None else strict
    registry = Registry(patches.values(), chosen, strict=strict)
    if chosen.ids:
        tree = tree or source.installed()
        registry.accept(tree.version, judge_each(sets.load(), tree, only=chosen.ids))
    _current[:] = [registry]
    return registry
