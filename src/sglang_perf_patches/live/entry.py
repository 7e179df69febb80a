"""Putting patches live: completely, once their modules are imported, and only on known code.

A patch waits until the last of its modules has been imported. Every definition that it changes or
relies on is verified in memory. Its install function says what to change, and the new objects are
made. Forwarders are put in place, and the dispatch table shows all of them at once.
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
from .executor import Executor
from .imports import Imports, is_loaded
from .patch_runtime import SERVING, Drain, Notices, PatchRuntime, Registry
from .published import Gatekeeper
from .removal import Removal
from .swap import Layer
from .verifier import Verifier
from .wrappers import Foreign, owner_of, raw

logger = logging.getLogger("sglang_perf_patches")


@dataclass(eq=False)
class Entry:
    """Puts patches live; each step may be repeated after an interruption.

    Attributes:
        is_preparing: code of ours is being imported or installed, by the thread that is at work.
    """

    _registry: Registry
    _imports: Imports
    _verifier: Verifier
    _removal: Removal
    _notices: Notices
    _gatekeeper: Gatekeeper
    _executor: Executor
    is_preparing: bool = False

    def advance(self) -> None:
        """Put live what can be by now."""
        for member in self._registry:
            if not self._registry.over and member.state == "pending" and member.end is None:
                self._attempt(member)

    def _attempt(self, member: PatchRuntime) -> None:
        """Advance a waiting patch as far as possible now."""
        if self._registry.is_on(member):  # the thread that put it live did not come to say so
            self._notices.set_status(member, "live", "")
            return
        missing = [name for name in member.variant.modules() if not self._imports.is_ready(name)]
        if missing:
            self._notices.set_status(member, "pending", f"{missing[0]} is not imported yet")
            return
        for needed in member.patch.requires:
            state = self._registry[needed].state
            if state not in SERVING:
                self._removal.lose(member, "failed", f"it needs {needed}, which is {state}")
                return
        ruled = self._gatekeeper.ruling(member)
        if ruled is not None:
            self._notices.set_status(member, *ruled)
            return
        try:
            self.is_preparing = True
            self._go_live(member, self._prepare(member))
        except Gated as gate:
            member.forget()
            self._notices.set_status(member, "gated", str(gate))
        except Foreign as foreign:
            self._removal.lose(member, "conflict", str(foreign))
        except Exception as error:
            logger.debug("%s failed", member.patch.id, exc_info=True)
            if not self._executor:  # else an import has ended, which may be what was missing
                self._removal.lose(member, "failed", f"{type(error).__name__}: {error}")
        finally:
            self.is_preparing = False

    def _prepare(self, member: PatchRuntime) -> list[str]:
        """Import and run install code, and note what it makes; what is seen stays as it is.

        Returns:
            foreign wrappers around what the patch changes.

        Raises:
            Foreign: stock's code is not what it was.
            Gated: the patch does not support the situation of this process.
            Exception: install code failed.
        """
        member.forget()
        install = member.variant.load()
        found = self._verifier.verify(member)
        member.seen = self._verifier.identity_snapshot(member)
        member.gate = ""
        patching = Patching(
            member.patch.id,
            member.variant,
            member.ran,
            partial(self._close, member),
        )
        install(patching)
        layers: dict[str, list[Layer]] = {}
        for reference, make in patching.changes:
            layers.setdefault(reference, []).append(Layer(member.patch.id, make))
        unchanged = set(member.variant.targets + member.variant.adds) - set(layers)
        if unchanged:
            raise RuntimeError(f"its install function left {min(unchanged)} unchanged")
        if not self._verifier.is_as_seen(member):  # since install code imported something
            found = self._verifier.verify(member)
        slots = {reference: self._verifier.slot(reference, found) for reference in layers}
        member.layers = {reference: tuple(each) for reference, each in layers.items()}
        member.slots = slots
        member.drains = tuple(patching.drains)
        # Makes the layers, which may import too, and keeps them.
        self._registry.made_with(member)
        return found.wrappers

    def _go_live(self, member: PatchRuntime, wrappers: list[str]) -> None:
        """Change everything that a patch wants changed, or nothing."""
        registry = self._registry
        if registry.over:
            return
        registry.dispatch.slots |= {
            (id(slot.owner), slot.name): slot for slot in member.slots.values()
        }
        try:
            is_shown = registry.show([*registry.on(), member])
        except Exception as error:
            if not registry.is_on(member):
                member.forget()
            self._removal.lose(member, "failed", f"{type(error).__name__}: {error}")
            return
        if not is_shown:
            member.forget()
            reason = "a thread is in a call that it would change"
            self._notices.set_status(member, "pending", reason)
        elif member.gate:
            self._notices.set_status(member, "gated", member.gate)
        else:
            self._notices.set_status(member, "live", around(wrappers))
        member.seen = self._verifier.identity_snapshot(member)

    def _close(self, member: PatchRuntime, reason: str) -> None:
        """A patch reports that it now runs only stock's code. On a hot path: nothing waits."""
        member.gate = reason
        if member.state == "live":
            self._notices.set_status(member, "gated", reason)


def around(wrappers: Iterable[str]) -> str:
    """The reason of a patch that is live, with foreign wrappers around it."""
    text = "; ".join(wrappers)
    return f"wrapped by {text}" if text else ""


@dataclass(eq=False)
class Patching:
    """Takes note of what an install function wants changed. Nothing changes while that runs.

    It belongs to the activation; sets only use it. The methods are those of
    `model.patching.Patching`.

    Attributes:
        ran: the patch's run flag.
        gate: called at run time by changed code that from now on runs only stock's code, and why.
        changes: ``(reference, make)``, in the order of the requests.
        drains: what the patch holds between its calls.
    """

    _patch: str
    _variant: Variant
    ran: RunFlag
    gate: Callable[[str], None]
    changes: list[tuple[str, Make]] = field(default_factory=list)
    drains: list[Drain] = field(default_factory=list)

    def module(self, name: str) -> ModuleType:
        """A module that has been imported."""
        # The variant's modules are complete, even if their imports are still on the stack.
        if name not in self._variant.modules() and not is_loaded(name):
            raise RuntimeError(f"module {name} has not been imported")
        return sys.modules[name]

    def get(self, reference: str) -> Any:
        """The object under a reference: a class, or an attribute as its owner holds it."""
        owner, name = owner_of(reference)
        return raw(owner, name)

    def override(self, reference: str, make: Make) -> None:
        """Replace a declared target, or an added definition that another patch of ours may add."""
        if reference not in self._variant.targets + self._variant.adds:
            raise RuntimeError(f"{reference} is not declared as a target of {self._patch}")
        self.changes.append((reference, make))

    def add(self, reference: str, value: Any) -> None:
        """Bring a declared new attribute."""
        self.override(reference, lambda _: value)

    def drain(self, is_idle: Callable[[], bool], waits_for: str) -> None:
        """Hold work between calls: stay on until `is_idle`."""
        self.drains.append(Drain(is_idle, waits_for))

    def anytime(self, because: str) -> None:
        """Hold nothing between calls."""
        assert because
