"""Putting patches live: completely, once their modules are imported, and only on known code.

The steps for one patch:

1. wait until the last of its modules is imported;
2. verify in memory every definition that it changes or relies on;
3. run its install function, which declares the changes, and make the new objects;
4. put forwarders in place and exchange the dispatch table, which shows all changes at once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

from ..model.patch import Variant
from ..model.patching import Gated, Make
from ..model.state import RunFlag
from .dispatch_table import dispatch
from .executor import executor
from .imports import Imports, is_loaded
from .patch_runtime import SERVING, Drain, PatchRuntime, Registry
from .published import Gatekeeper
from .swap import Layer
from .verifier import Verifier
from .wrappers import Foreign, owner_of, raw

logger = logging.getLogger("sglang_perf_patches")


@dataclass(eq=False)
class Entry:
    """Puts patches live; each step is idempotent, so it may be repeated after an interruption.

    Attributes:
        is_preparing: whether a thread is importing or running install code.
    """

    _registry: Registry
    _imports: Imports
    _verifier: Verifier
    _gatekeeper: Gatekeeper
    is_preparing: bool = False

    def advance(self) -> None:
        """Put live every pending patch that is ready."""
        for member in self._registry:
            if not self._registry.over and member.state == "pending" and member.end is None:
                self._attempt(member)

    def _attempt(self, member: PatchRuntime) -> None:
        """Advance a waiting patch as far as possible now."""
        if self._registry.is_on(member):  # interrupted after the exchange, before its state was set
            self._registry.notices.set_status(member, "live", "")
            return
        missing = [name for name in member.variant.modules() if not self._imports.is_ready(name)]
        if missing:
            self._registry.notices.set_status(
                member, "pending", f"{missing[0]} is not imported yet"
            )
            return
        for needed in member.patch.requires:
            state = self._registry[needed].state
            if state not in SERVING:
                self._registry.lose(member, "failed", f"it needs {needed}, which is {state}")
                return
        ruled = self._gatekeeper.ruling(member)
        if ruled is not None:
            self._registry.notices.set_status(member, *ruled)
            return
        try:
            self.is_preparing = True
            self._go_live(member, self._prepare(member))
        except Gated as gate:
            member.forget()
            self._registry.notices.set_status(member, "gated", str(gate))
        except Foreign as foreign:
            self._registry.lose(member, "conflict", str(foreign))
        except Exception as error:
            logger.debug("%s failed", member.patch.id, exc_info=True)
            # With a request waiting, an import has ended that may have been missing: try again.
            if not executor.has_requests():
                self._registry.lose(member, "failed", f"{type(error).__name__}: {error}")
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
        self._registry.made_with(member)
        return found.wrappers

    def _go_live(self, member: PatchRuntime, wrappers: list[str]) -> None:
        """Show all changes of a prepared patch, or none if a thread is inside one of them."""
        registry = self._registry
        if registry.over:
            return
        dispatch.slots |= {(id(slot.owner), slot.name): slot for slot in member.slots.values()}
        try:
            is_shown = registry.show([*registry.on(), member])
        except Exception as error:
            if not registry.is_on(member):
                member.forget()
            self._registry.lose(member, "failed", f"{type(error).__name__}: {error}")
            return
        if not is_shown:
            member.forget()
            reason = "a thread is inside the code that it would change"
            self._registry.notices.set_status(member, "pending", reason)
        elif member.gate:
            self._registry.notices.set_status(member, "gated", member.gate)
        else:
            self._registry.notices.set_status(member, "live", around(wrappers))
        member.seen = self._verifier.identity_snapshot(member)

    def _close(self, member: PatchRuntime, reason: str) -> None:
        """Called by patched code that now runs only stock's. On a hot path: nothing may block."""
        member.gate = reason
        if member.state == "live":
            self._registry.notices.set_status(member, "gated", reason)


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
