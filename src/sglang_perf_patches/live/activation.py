"""The patches of a process, from their selection until all are off again.

A selected patch with the verdict ``applies`` goes live, completely and only on known code:

1. wait until the last of its modules is imported;
2. verify in memory every definition that it changes or relies on;
3. run its install function, which declares the changes, and make the new objects;
4. put forwarders in place and exchange the dispatch table, which shows all changes at once.

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
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

from ..compat.source import Tree
from ..compat.verdict import Verdict
from ..model.patch import Patch, Variant, module_of
from ..model.patching import Gated, Make
from ..model.selection import Selection
from ..model.state import Observer, PatchState, Report, RunFlag, State
from .compiled import Compiled
from .dispatch_table import dispatch
from .executor import executor
from .imports import Watched, is_loaded, is_ready, stop_waiting, wait_for
from .patch_runtime import SERVING, Drain, Notices, PatchRuntime, Registry
from .published import Gatekeeper
from .swap import Layer
from .verifier import Verifier
from .wrappers import Foreign, owner_of, raw

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
        is_preparing: whether a thread is importing or running install code.
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
        self._verifier = Verifier(Compiled())
        self._hooks = Watched(self.look_again)
        self._gatekeeper = Gatekeeper(self.registry, self.look_again)
        self.is_preparing = False

    # -- for callers -----------------------------------------------------------------------------

    def take(self, tree: Tree, verdicts: Iterable[Verdict]) -> None:
        """Take the verdicts on the installed sglang for the selected patches."""
        self._version = tree.version
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

    def report(self) -> Report:
        """The state of each patch."""
        states = tuple(PatchState(m.patch.id, *m.shown, m.ran.seen) for m in self.registry)
        return Report(self.selection.text, self._version, states)

    def stop(self) -> None:
        """Make the next check remove every patch."""
        self.is_stopping = self.registry.over = True

    def leave(self, reason: str) -> None:
        """Remove every patch in a forked child that can't continue."""
        self.is_preparing = False
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
            stop_waiting(self.look_again)
            self.notices.tell(lambda observer: observer.drop(self))

    def _advance(self) -> None:
        """Register for the imports that are missing, and put live the patches that are ready."""
        working = self.registry.working()
        if self.registry.over or not working:
            return
        names = [name for member in working for name in member.variant.modules()]
        relied_on = [module_of(each) for member in working for each in member.definitions]
        wait_for([*names, _HOOKS, *relied_on], self.look_again)
        if is_ready(_HOOKS):
            self._hooks.begin(sys.modules[_HOOKS].HookRegistry, "apply_hooks")
        self._gatekeeper.watch()
        for member in self.registry:
            if not self.registry.over and member.state == "pending" and member.end is None:
                self._attempt(member)

    def _attempt(self, member: PatchRuntime) -> None:
        """Advance a waiting patch as far as possible now."""
        if self.registry.is_on(member):  # interrupted after the exchange, before its state was set
            self.notices.set_status(member, "live", "")
            return
        missing = [name for name in member.variant.modules() if not is_ready(name)]
        if missing:
            self.notices.set_status(member, "pending", f"{missing[0]} is not imported yet")
            return
        for needed in member.patch.requires:
            state = self.registry[needed].state
            if state not in SERVING:
                self.registry.lose(member, "failed", f"it needs {needed}, which is {state}")
                return
        ruled = self._gatekeeper.ruling(member)
        if ruled is not None:
            self.notices.set_status(member, *ruled)
            return
        try:
            self.is_preparing = True
            self._go_live(member, self._prepare(member))
        except Gated as gate:
            member.forget()
            self.notices.set_status(member, "gated", str(gate))
        except Foreign as foreign:
            self.registry.lose(member, "conflict", str(foreign))
        except Exception as error:
            logger.debug("%s failed", member.patch.id, exc_info=True)
            # With a request waiting, an import has ended that may have been missing: try again.
            if not executor.has_requests():
                self.registry.lose(member, "failed", f"{type(error).__name__}: {error}")
        finally:
            self.is_preparing = False

    def _prepare(self, member: PatchRuntime) -> list[str]:
        """Run the install function and make the new objects; stock stays as it is.

        Returns:
            foreign wrappers around what the patch changes.

        Raises:
            Foreign: other code has replaced a definition.
            Gated: the patch does not support the situation of this process.
            Exception: the install function failed.
        """
        member.forget()
        install = member.variant.load()
        found = self._verifier.verify(member)
        member.seen = self._verifier.identity_snapshot(member)
        member.gate = ""
        close = partial(self._close, member)
        patching = Patching(member.patch.id, member.variant, member.ran, close)
        install(patching)
        changed = dict.fromkeys(reference for reference, _ in patching.changes)
        unchanged = set(member.variant.targets + member.variant.adds) - changed.keys()
        if unchanged:
            raise RuntimeError(f"its install function left {min(unchanged)} unchanged")
        if not self._verifier.is_as_seen(member):  # since install code imported something
            found = self._verifier.verify(member)
        slots = {reference: self._verifier.slot(reference, found) for reference in changed}
        member.layers = [
            (slots[reference], Layer(member.patch.id, make)) for reference, make in patching.changes
        ]
        member.slots = slots
        member.drains = tuple(patching.drains)
        # Makes the layers now: that may import, so it must not happen during the exchange.
        self.registry.made_with(member)
        return found.wrappers

    def _go_live(self, member: PatchRuntime, wrappers: list[str]) -> None:
        """Show all changes of a prepared patch, or none if a thread is inside one of them."""
        if self.registry.over:
            return
        dispatch.slots |= {(id(slot.owner), slot.name): slot for slot in member.slots.values()}
        try:
            is_shown = self.registry.show([*self.registry.on(), member])
        except Exception as error:
            if not self.registry.is_on(member):
                member.forget()
            self.registry.lose(member, "failed", f"{type(error).__name__}: {error}")
            return
        if not is_shown:
            member.forget()
            reason = "a thread is inside the code that it would change"
            self.notices.set_status(member, "pending", reason)
        elif member.gate:
            self.notices.set_status(member, "gated", member.gate)
        else:
            self.notices.set_status(member, "live", around(wrappers))
        member.seen = self._verifier.identity_snapshot(member)

    def _close(self, member: PatchRuntime, reason: str) -> None:
        """Called by patched code that now runs only stock's. On a hot path: nothing may block."""
        member.gate = reason
        if member.state == "live":
            self.notices.set_status(member, "gated", reason)

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


def around(wrappers: Iterable[str]) -> str:
    """The reason to show for a live patch; "" if no foreign wrapper is around it."""
    text = "; ".join(wrappers)
    return f"wrapped by {text}" if text else ""


@dataclass(eq=False)
class Patching:
    """Collects the changes that an install function declares; see `model.patching.Patching`.

    Attributes:
        ran: the patch's run flag.
        gate: see `model.patching.Patching.gate`.
        changes: ``(reference, make)``, in the order of the calls.
        drains: the work that the patch may hold between its calls.
    """

    _patch: str
    _variant: Variant
    ran: RunFlag
    gate: Callable[[str], None]
    changes: list[tuple[str, Make]] = field(default_factory=list)
    drains: list[Drain] = field(default_factory=list)

    def module(self, name: str) -> ModuleType:
        """See `model.patching.Patching.module`."""
        # The variant's modules are complete, even if their imports are still on the stack.
        if name not in self._variant.modules() and not is_loaded(name):
            raise RuntimeError(f"module {name} has not been imported")
        return sys.modules[name]

    def get(self, reference: str) -> Any:
        """See `model.patching.Patching.get`."""
        owner, name = owner_of(reference)
        return raw(owner, name)

    def override(self, reference: str, make: Make) -> None:
        """See `model.patching.Patching.override`."""
        if reference not in self._variant.targets + self._variant.adds:
            raise RuntimeError(f"{reference} is not declared as a target of {self._patch}")
        self.changes.append((reference, make))

    def add(self, reference: str, value: Any) -> None:
        """See `model.patching.Patching.add`."""
        self.override(reference, lambda _: value)

    def drain(self, is_idle: Callable[[], bool], waits_for: str) -> None:
        """See `model.patching.Patching.drain`."""
        self.drains.append(Drain(is_idle, waits_for))

    def anytime(self, because: str) -> None:
        """See `model.patching.Patching.anytime`."""
        assert because
