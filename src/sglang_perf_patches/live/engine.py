"""Putting patches live in a process, and taking them off again.

In order, for each chosen patch whose verdict is ``applies``:

1. it waits until the last of its modules has been imported (`pending`);
2. every definition it changes or relies on is verified in memory: somebody else's replacement is
   a `conflict`, a wrapper is reported and kept;
3. its install function says what to change; only then is anything changed, all of it or nothing;
4. around sglang's ``HookRegistry.apply_hooks``, which runs after every plugin, it is verified
   again, and rolled back as a whole where a plugin replaced a definition of it.

What is not detected: a replacement by plain assignment after all plugins have run.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import wrapt

from .. import sets
from ..judge import source
from ..judge.source import Definition
from ..judge.verdict import Verdict, judge_each
from ..model import selection
from ..model.patch import Patch, Variant, by_id, module_of, qualname_of
from ..model.patching import MISSING, Gated, Make
from ..model.selection import Selection, StrictFailure
from ..model.state import PatchState, Report, RunFlag, State
from ..seen import keeper as record
from . import identity as objects
from .identity import Foreign
from .swap import Slot

logger = logging.getLogger("sglang_perf_patches")

_HOOKS = "sglang.srt.plugins.hook_registry"


class _Patching:
    """What an install function is given: names in, wishes out. Nothing changes while it runs.

    Attributes:
        ran: the patch's run flag; its changed code sets ``ran.seen = True``.
        release: the release whose code the tree has.
    """

    def __init__(self, member: _Member, variant: Variant) -> None:
        """Belongs to the activation; sets only use it."""
        self.ran = member.ran
        self.release = (member.verdict.release if member.verdict else None) or ""
        self._member = member
        self._variant = variant
        self.wishes: list[tuple[str, Make]] = []

    def module(self, name: str) -> ModuleType:
        """A module that has been imported.

        Raises:
            RuntimeError: it has not; name it in the variant's ``awaits``.
        """
        # A module of the variant's has finished, though its own import may still be on the stack.
        if name not in self._variant.modules() and not objects.is_loaded(name):
            raise RuntimeError(f"module {name} has not been imported")
        return sys.modules[name]

    def get(self, reference: str) -> Any:
        """The object under a reference: a class, or an attribute as its owner holds it."""
        owner, name = objects.owner_of(reference)
        return objects.raw(owner, name)

    def override(self, reference: str, make: Make) -> None:
        """Replace a declared target, or an added definition that another patch of ours may add too.

        Args:
            reference: as declared.
            make: given the attribute as the layers below left it, returns the new one. Call what
                it is given to run stock's code.
        """
        if reference not in self._variant.targets + self._variant.adds:
            raise RuntimeError(
                f"{reference} is not declared as a target of {self._member.patch.id}"
            )
        self.wishes.append((reference, make))

    def add(self, reference: str, value: Any) -> None:
        """Bring a declared new attribute."""
        self.override(reference, lambda _: value)

    def gate(self, reason: str) -> None:
        """From changed code at run time: it now leaves everything to stock, for this reason."""
        self._member.settle("gated", reason)


@dataclass
class _Member:
    """One patch in this process."""

    patch: Patch
    order: int
    state: State = "off"
    reason: str = ""
    verdict: Verdict | None = None
    ran: RunFlag = field(default_factory=RunFlag)
    slots: list[Slot] = field(default_factory=list)

    def settle(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason
        record.changed()


class _Activation:
    """The patches of this process. There is one at a time."""

    def __init__(self, chosen: Selection, strict: bool) -> None:
        self.chosen = chosen
        self.strict = strict
        self.version = "unknown"
        self.finished: set[str] = set()
        self.slots: dict[tuple[int, str], Slot] = {}
        self.unhook: Callable[[], None] | None = None
        self.over = False
        self.members = {
            patch.id: _Member(patch, order)
            for order, patch in enumerate(by_id(sets.load()).values())
        }

    # -- the way in ------------------------------------------------------------------------------

    def start(self, tree: source.Tree) -> None:
        self.version = tree.version
        for verdict in judge_each(sets.load(), tree):
            member = self.members[verdict.patch.id]
            member.verdict = verdict
            if member.patch.id not in self.chosen.chosen:
                member.reason = "not chosen"
            elif verdict.word == "applies":
                member.settle("pending", "")
            else:
                member.settle(verdict.word, verdict.reason)
                if verdict.word == "refused" or (
                    verdict.word == "absent" and member.patch.id in self.chosen.in_full
                ):
                    self.complain(member)
        waiting = [member for member in self.members.values() if member.state == "pending"]
        if not waiting:
            return
        names = [module for member in waiting for module in _variant(member).modules()]
        for name in dict.fromkeys([*names, _HOOKS]):
            # wrapt would call at once for a module that is still being executed: such a one is
            # looked at again with the next module that finishes, or the next call.
            if name not in sys.modules:
                wrapt.register_post_import_hook(self.imported, name)
        self.advance()

    def imported(self, module: ModuleType) -> None:
        """A module that we wait for has finished: never raise into the import, unless STRICT."""
        with self.guarded():
            self.finished.add(module.__name__)
            self.advance()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Hold the lock; a fault of ours takes everything off, and does not reach sglang."""
        with _lock:
            try:
                yield
            except Exception as error:
                logger.debug("unexpected", exc_info=True)
                self.abandon(f"{type(error).__name__}: {error}")

    def advance(self) -> None:
        """Put live what can be."""
        if self.over:
            return
        if self.unhook is None and self.is_ready(_HOOKS):
            self.unhook = _wrap_apply_hooks(self)
        before = None
        while before != (before := [member.state for member in self.members.values()]):
            # Again after a change: one that fails may leave its work to one that was superseded.
            for member in self.members.values():
                if member.state in {"pending", "superseded"}:
                    self.try_to_go_live(member)

    def is_ready(self, name: str) -> bool:
        return name in self.finished or objects.is_loaded(name)

    # -- one patch -------------------------------------------------------------------------------

    def try_to_go_live(self, member: _Member) -> None:
        variant = _variant(member)
        above = self.superseding(member)
        if above:
            if member.state != "superseded":
                member.settle("superseded", f"{above} does its work and more")
            return
        missing = [name for name in variant.modules() if not self.is_ready(name)]
        if missing:
            reason = f"{missing[0]} is not imported yet"
            if (member.state, member.reason) != ("pending", reason):
                member.settle("pending", reason)
            return
        for id in member.patch.requires:
            if self.members[id].state not in {"live", "pending", "built-in", "superseded", "gated"}:
                self.end(member, "failed", f"it needs {id}, which is {self.members[id].state}")
                return
        try:
            wrappers = self.verify(member)
            patching = _Patching(member, variant)
            variant.load()(patching)
            undone = set(variant.targets + variant.adds) - {ref for ref, _ in patching.wishes}
            if undone:
                raise RuntimeError(f"its install function leaves {min(undone)} unchanged")
            self.change(member, patching.wishes)
        except Gated as gate:
            member.settle("gated", str(gate))
        except Foreign as foreign:
            self.end(member, "conflict", str(foreign))
        except Exception as error:
            logger.debug("%s failed", member.patch.id, exc_info=True)
            self.end(member, "failed", f"{type(error).__name__}: {error}")
        else:
            around = f"wrapped by {'; '.join(wrappers)}" if wrappers else ""
            if member.state != "gated":
                member.settle("live", around)

    def superseding(self, member: _Member) -> str | None:
        """The patch whose presence makes this one unnecessary, if any."""
        for id in member.patch.superseded_by:
            if self.members[id].state in {"live", "pending"}:
                return id
        return None

    def verify(self, member: _Member) -> list[str]:
        """Check every definition of a patch in memory.

        Returns:
            the foreign wrappers around its targets.

        Raises:
            Foreign: somebody replaced one, or already brought what the patch would add.
        """
        variant = _variant(member)
        definitions = member.verdict.definitions if member.verdict else None
        wrappers: list[str] = []
        checked = [
            each
            for definition in (definitions or {}).values()
            for each in (definition, *definition.members)
        ]
        for definition in checked:
            reference = definition.reference
            module = module_of(reference)
            if module not in sys.modules or not self.is_ready(module):
                continue  # a dependency that nothing has imported yet, or not to its end
            owner, name = objects.owner_of(reference)
            slot = self.slots.get((id(owner), name))
            if slot is not None and slot.layers:
                wrappers += self.verify_ours(reference, slot, definition)
                continue
            stock = objects.check(definition)
            if stock is not None and reference in variant.targets:
                wrappers += stock.wrappers
        for reference in variant.adds:
            owner, name = objects.owner_of(reference)
            slot = self.slots.get((id(owner), name))
            if slot is not None and slot.layers:
                wrappers += self.verify_ours(reference, slot)
            elif objects.raw(owner, name) is not MISSING:
                whose = objects.describe(objects.raw(owner, name))
                raise Foreign(f"{reference} is there already: {whose}")
        return wrappers

    def verify_ours(
        self, reference: str, slot: Slot, definition: Definition | None = None
    ) -> tuple[str, ...]:
        held = objects.raw(slot.owner, slot.name)
        if slot.inside is None:
            wrappers = objects.wrappers_around(held, slot.value)
        else:
            decorators = definition.decorators if definition else 0
            wrappers = objects.wrappers_around(held, slot.inside, decorators)
        if wrappers is None:
            raise Foreign(f"{reference} is replaced by {objects.describe(held)}")
        return wrappers

    def change(self, member: _Member, wishes: list[tuple[str, Make]]) -> None:
        """Change everything a patch wishes, or nothing."""
        try:
            for reference, make in wishes:
                slot = self.slot(member, reference)
                member.slots.append(slot)
                slot.put(member.order, member.patch.id, make)
        except BaseException:
            self.take_off(member)
            raise

    def slot(self, member: _Member, reference: str) -> Slot:
        owner, name = objects.owner_of(reference)
        key = (id(owner), name)
        if key not in self.slots or not self.slots[key].layers:
            self.slots[key] = Slot(owner, name, objects.raw(owner, name))
            definition = (
                (member.verdict.definitions or {}).get(reference) if member.verdict else None
            )
            stock = objects.check(definition) if definition else None
            if stock and (stock.wrappers or isinstance(owner, ModuleType)):
                self.slots[key] = Slot(owner, name, stock.function, inside=stock.function)
        return self.slots[key]

    def take_off(self, member: _Member) -> None:
        for slot in reversed(member.slots):
            slot.take(member.patch.id)
        member.slots.clear()

    def end(self, member: _Member, state: State, reason: str) -> None:
        """Take a patch off for good, and say so."""
        self.take_off(member)
        member.settle(state, reason)
        self.complain(member)
        for other in self.working():
            if member.patch.id in other.patch.requires:
                self.end(other, "failed", f"it needs {member.patch.id}, which is {state}")

    def complain(self, member: _Member) -> None:
        line = f"sglang-perf-patches: {member.patch.id} is {member.state}: {member.reason}"
        if self.strict and member.patch.id in self.chosen.by_name:
            raise StrictFailure(line)
        logger.warning(line)

    # -- other plugins ---------------------------------------------------------------------------

    def before_hooks(self, registry: Any) -> None:
        """Step aside from what a plugin is about to replace, so that it meets stock's object."""
        replaced = dict(_replacements(registry))
        for member in self.working():
            variant = _variant(member)
            for reference in variant.targets + variant.adds + variant.depends:
                dotted = f"{module_of(reference)}.{qualname_of(reference)}"
                for target, whose in replaced.items():
                    if dotted == target or dotted.startswith(f"{target}."):
                        self.end(member, "conflict", f"{reference} is replaced by {whose}")
                        break
                if member.state == "conflict":
                    break

    def after_hooks(self) -> None:
        """Verify again what is live, and what a removal has uncovered."""
        for member in self.working():
            if member.state != "live":
                continue
            try:
                wrappers = self.verify(member)
            except Foreign as foreign:
                self.end(member, "conflict", str(foreign))
            else:
                member.settle("live", f"wrapped by {'; '.join(wrappers)}" if wrappers else "")
        self.advance()

    def working(self) -> Iterator[_Member]:
        for member in list(self.members.values()):
            if member.state in {"live", "pending", "gated"}:
                yield member

    # -- the way out -----------------------------------------------------------------------------

    def abandon(self, reason: str) -> None:
        """After an unexpected fault nobody knows what is done: leave stock, and say so."""
        lost = [m for m in self.members.values() if m in self.working() or m.state == "superseded"]
        self.stop()
        for member in lost:
            member.settle("failed", reason)
        for member in lost:
            if self.strict and member.patch.id in self.chosen.by_name:
                self.complain(member)
        logger.error("sglang-perf-patches: every patch is taken off: %s", reason)

    def stop(self) -> None:
        """Give every name stock's own object back, whatever was being done."""
        self.over = True
        for slot in reversed(list(self.slots.values())):
            try:
                slot.clear()
            except Exception:
                logger.exception("sglang-perf-patches: %s can't be given back", slot.name)
        for member in self.members.values():
            member.slots.clear()
        if self.unhook is not None:
            self.unhook()

    def report(self) -> Report:
        states = tuple(
            PatchState(id, member.state, member.reason, member.ran.seen)
            for id, member in self.members.items()
        )
        return Report(self.chosen.text, self.version, states)


_lock = threading.RLock()
# A child must not inherit the lock from a thread that it does not have.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
_current: list[_Activation] = []  # at most one; a container, so that nothing rebinds it


def activate(
    text: str | None = None, *, strict: bool | None = None, tree: source.Tree | None = None
) -> Report:
    """See `sglang_perf_patches.activate`; `tree` is the installed sglang, where it was read."""
    with _lock:
        if not _current:
            chosen = selection.parse(
                selection.from_environment() if text is None else text, by_id(sets.load())
            )
            strictly = selection.strict_from_environment() if strict is None else strict
            activation = _Activation(chosen, strictly)
            _current.append(activation)
            try:
                if chosen.chosen:
                    activation.start(tree or source.installed())
                    record.keep(report)
            except BaseException:
                activation.stop()
                _current.clear()
                raise
        else:
            with _current[0].guarded():
                _current[0].advance()
        return _current[0].report()


def deactivate() -> None:
    """See `sglang_perf_patches.deactivate`."""
    with _lock:
        if _current:
            _current.pop().stop()
            record.drop()


def report() -> Report | None:
    """What happened in this process; None where nothing has been activated."""
    with _lock:
        return _current[0].report() if _current else None


def _variant(member: _Member) -> Variant:
    assert member.verdict is not None
    assert member.verdict.variant is not None
    return member.verdict.variant


def _wrap_apply_hooks(activation: _Activation) -> Callable[[], None]:
    """Judge around the moment when sglang applies every plugin's hooks; returns the undoing."""
    registry = sys.modules[_HOOKS].HookRegistry
    original = objects.raw(registry, "apply_hooks")

    def around(wrapped: Callable[..., Any], _: Any, args: Any, kwargs: Any) -> Any:
        with activation.guarded():
            activation.before_hooks(registry)
        result = wrapped(*args, **kwargs)
        with activation.guarded():
            activation.after_hooks()
        return result

    wrapper = wrapt.FunctionWrapper(original, around)
    registry.apply_hooks = wrapper

    def undo() -> None:
        if objects.raw(registry, "apply_hooks") is wrapper:
            registry.apply_hooks = original

    return undo


def _replacements(registry: Any) -> Iterator[tuple[str, str]]:
    """Dotted names that registered REPLACE hooks will take, with whose they are."""
    for target, hooks in dict(registry._hooks).items():
        for kind, hook, hook_source in hooks:
            if kind.name == "REPLACE":
                distribution = getattr(hook_source, "dist_name", None)
                whose = objects.describe(hook)
                yield target, f"{whose} (plugin of {distribution})" if distribution else whose
