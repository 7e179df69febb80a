"""The patches of a process, from their selection until all are off again.

A selected patch with the verdict ``applies`` goes live when its modules are imported (see `entry`).
Its definitions are checked again after each awaited import, after sglang's
``HookRegistry.apply_hooks`` (which runs after every plugin), after each publication of the server's
arguments, and once a second. If a definition was replaced, or if the server uses a feature that the
patch was not proven with (see `published`), the whole patch is removed, as soon as no thread is
inside it and it holds no work (see `patch_runtime`).

The executor runs these steps one at a time. Each is idempotent.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterable
from functools import partial

from ..compat.source import Tree
from ..compat.verdict import Verdict
from ..model.patch import Patch, module_of
from ..model.selection import Selection
from ..model.state import Observer, PatchState, Report, State
from .compiled import Compiled
from .entry import Entry, around
from .executor import executor
from .imports import Imports, Watched
from .patch_runtime import Notices, Registry
from .published import Gatekeeper
from .verifier import Verifier
from .wrappers import Foreign

logger = logging.getLogger("sglang_perf_patches")

# Bounded, because install code may import a module that the waiting thread is importing.
_OTHER_THREAD_S = 1.0
_OFF: tuple[State, str] = ("off", "")
_HOOKS = "sglang.srt.plugins.hook_registry"


class Activation:
    """The patches of this process; at most one at a time has not ended.

    Creating one changes nothing in stock.

    Args:
        patches: every patch, in declared order.
        selection: the patches that are to go live.
        strict: whether losing a patch that was chosen by name ends the process.
        observers: told of each change, and when everything is off again.

    Attributes:
        selection: as given.
        registry: the patches.
        notices: what is to be logged.
        entry: puts patches live.
        is_observed: whether observers know that it has started.
        is_stopping: `stop` was called: everything is to be removed.
        ended: `stop` was called, and everything is off. After a fault it stays False, so that
            `report` still shows the fault.
    """

    def __init__(
        self,
        patches: Iterable[Patch],
        selection: Selection,
        *,
        strict: bool,
        observers: Iterable[Observer],
    ) -> None:
        self.selection = selection
        self.is_observed = False
        self.is_stopping = False
        self.ended = False
        self._version = "unknown"
        self.notices = Notices(selection.by_name if strict else (), observers)
        self.registry = Registry(patches, self.notices)
        self._imports = Imports(self.look_again)
        self._verifier = Verifier(self._imports, Compiled())
        self._hooks = Watched(self.look_again)
        self._gatekeeper = Gatekeeper(self.registry, self.look_again)
        self.entry = Entry(self.registry, self._imports, self._verifier, self._gatekeeper)

    # -- for callers -----------------------------------------------------------------------------

    def take(self, tree: Tree, verdicts: Iterable[Verdict]) -> None:
        """Take the verdicts on the installed sglang for the selected patches."""
        self._version = tree.version
        self._verifier.compiled = Compiled(tree.cache)
        for verdict in verdicts:
            member = self.registry[verdict.patch.id]
            member.verdict = verdict
            if member.patch.id not in self.selection.ids:
                continue
            if verdict.word == "applies":
                member.status = ("pending", "")
                continue
            member.status = (verdict.word, verdict.reason)
            is_named_in_full = member.patch.id in self.selection.in_full
            if verdict.word == "refused" or (verdict.word == "absent" and is_named_in_full):
                self.notices.complain(member)

    def look_again(self) -> None:
        """Check live patches, remove marked ones, and put live those that are ready."""
        self._request(self._look)

    def look_now(self) -> None:
        """`look_again` for a caller that is already inside a request of the executor."""
        self._do(self._look)

    def save(self) -> None:
        """Write what was compared to the tree's cache; call it from one thread at a time."""
        self._verifier.compiled.save()

    def report(self) -> Report:
        """The state of each patch."""
        states = tuple(PatchState(m.patch.id, *m.status, m.ran.seen) for m in self.registry)
        return Report(self.selection.text, self._version, states)

    def stop(self) -> None:
        """Make the next check remove every patch."""
        self.is_stopping = self.registry.over = True

    def leave(self, reason: str) -> None:
        """Remove every patch in a forked child that can't continue."""
        self.entry.is_preparing = False
        self._abandon(reason)

    def take_off(self, patch: str) -> None:
        """Remove one patch as soon as that is safe; for tests and measurements."""
        self._request(partial(self.registry.lose, self.registry[patch], *_OFF))

    # -- requests --------------------------------------------------------------------------------

    def _request(self, work: Callable[[], None]) -> None:
        """Run work in the executor. Catches every fault, because sglang's own code is calling."""
        try:
            executor.do(partial(self._do, work), wait_s=_OTHER_THREAD_S)
        except Exception as error:
            logger.debug("unexpected", exc_info=True)
            with contextlib.suppress(Exception):  # the next check tries again
                executor.do(partial(self._abandon, f"{type(error).__name__}: {error}"))

    # -- what the executor does ------------------------------------------------------------------

    def _do(self, work: Callable[[], None]) -> None:
        """Run work, then whatever is due after it; after a fault, remove every patch."""
        try:
            work()
            self._go_on()
        except Exception as error:
            logger.debug("unexpected", exc_info=True)
            self._abandon(f"{type(error).__name__}: {error}")

    def _look(self) -> None:
        """Verify each live patch whose snapshot changed; mark it for removal if it was replaced."""
        for member in self.registry.working():
            if self.registry.over or member.state != "live" or member.end is not None:
                continue
            if self._verifier.is_as_seen(member):
                continue
            now = self._verifier.identity_snapshot(member)
            try:
                found = self._verifier.verify(member)
            except Foreign as foreign:
                self.registry.lose(member, "conflict", str(foreign))
            else:
                member.seen = now
                self.notices.set_status(member, "live", around(found.wrappers))
        self._gatekeeper.act()

    def _go_on(self) -> None:
        """Remove marked patches, put live those that are ready, and end if all are off."""
        if self.is_stopping and not self.ended:
            self.registry.end_all(*_OFF)
        self.registry.remove_marked()
        self._advance()
        self.registry.remove_marked()  # one that failed to go live removes those that need it
        if self.registry.over and not self.registry.on():
            self._hooks.leave()
            self._gatekeeper.leave()
        # This also repairs what an interruption or a fault left in memory. Until then calls are
        # unaffected, because a forwarder without layers calls stock's code.
        self.registry.settle()
        if self.is_stopping and not self.ended and self.registry.is_clear():
            self.ended = True
            self._imports.leave()
            self.notices.tell(lambda observer: observer.drop(self))

    def _advance(self) -> None:
        """Register for the imports that are missing, and put live the patches that are ready."""
        working = self.registry.working()
        if self.registry.over or not working:
            return
        names = [name for member in working for name in member.variant.modules()]
        relied_on = [module_of(each) for member in working for each in member.definitions]
        self._imports.wait_for([*names, _HOOKS, *relied_on])
        if self._imports.is_ready(_HOOKS):
            self._hooks.begin(sys.modules[_HOOKS].HookRegistry, "apply_hooks")
        self._gatekeeper.watch(self._imports)
        self.entry.advance()

    def _abandon(self, reason: str) -> None:
        """After an unexpected fault: remove every patch, and log the reason once."""
        first, self.registry.over = not self.registry.over, True
        self.registry.end_all("failed", reason)
        try:
            self._go_on()
        except Exception:
            logger.debug("unexpected", exc_info=True)  # the next check tries again
        if first:
            failed = ("failed", reason)
            self.notices.lose_all(
                reason, [each for each in self.registry if failed in (each.status, each.end)]
            )
