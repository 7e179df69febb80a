"""The patches of a process, from the choice to stock again.

In order, for each chosen patch whose verdict is ``applies``:

1. it waits until the last of its modules has been imported (`pending`);
2. every definition it changes or relies on is verified in memory (see `verifier`). A replacement
   by other code is a `conflict`; a wrapper is reported and kept;
3. its install function says what to change, and the new objects are made. They are put in place
   inert, and the board shows all of them at once (see `board`);
4. it is verified again when the import of something that it relies on ends, around sglang's
   ``HookRegistry.apply_hooks``, which runs after every plugin, and whenever somebody looks again.
   If a definition was replaced, the whole patch is to be taken off;
5. it is taken off at a moment at which no thread is in a call of it and it holds no work
   (`model.patching.Patching.drain`); until then every look tries again.

Each step is done by the executor, one at a time, and may be repeated.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from types import CodeType
from typing import Any

from ..judge.source import Tree
from ..judge.verdict import Verdict
from ..model.patch import Patch, module_of, qualname_of
from ..model.patching import Gated
from ..model.selection import Selection
from ..model.state import PatchState, Report, State
from . import stacks
from .board import Board
from .compiled import Compiled
from .executor import Executor
from .identity import Foreign
from .imports import Imports
from .member import SERVING, WAITING, WORKING, Member
from .neighbours import HOOKS, around_apply_hooks, replacements
from .patching import Patching
from .swap import Change, Layer, Slot
from .verifier import Verifier

logger = logging.getLogger("sglang_perf_patches")

# Install code may import what the very thread imports that waits for it.
_OTHER_THREAD_S = 1.0
_OFF: tuple[State, str] = ("off", "")


class Activation:
    """The patches of this process. There is one at a time.

    Attributes:
        chosen: the selection.
        is_observed: whether observers know that it has started.
        is_importing: code of ours is being imported, by the thread that is at work.
        over: nothing goes live any more.
        is_stopping: it was stopped: everything is to be taken off.
        ended: it was stopped, and everything is off. After a fault it is not: it still reports it.
    """

    def __init__(
        self,
        patches: Iterable[Patch],
        chosen: Selection,
        *,
        strict: bool,
        board: Board,
        executor: Executor,
        on_change: Callable[[], None],
        on_end: Callable[[], None],
        on_loss: Callable[[str], None],
    ) -> None:
        """Change nothing yet.

        Args:
            patches: all there are, in declared order.
            chosen: those that are to go live.
            strict: whether the loss of one that was chosen by name is more than a warning.
            board: what this process shows.
            executor: does all that changes something.
            on_change: called when the state of a patch changed.
            on_end: called when everything is off again.
            on_loss: called outside of the executor, under `strict`, with the line to show.
        """
        self.chosen = chosen
        self.is_observed = False
        self.is_importing = False
        self.over = False
        self.ended = False
        self.is_stopping = False
        self._strict = strict
        self._board = board
        self._executor = executor
        self._on_change = on_change
        self._on_end = on_end
        self._on_loss = on_loss
        self._version = "unknown"
        self._messages: deque[tuple[int, str]] = deque()
        self._loss = ""
        self._imports = Imports(self._finish_import)
        self._verifier = Verifier(board, self._imports, Compiled())
        self._around_hooks: Slot | None = None
        self._members = {patch.id: Member(patch, order) for order, patch in enumerate(patches)}

    # -- the way in ------------------------------------------------------------------------------

    def take(self, tree: Tree, verdicts: Iterable[Verdict]) -> None:
        """Note what was judged of a sglang tree, for the patches that are chosen."""
        self._version = tree.version
        self._verifier.compiled = Compiled(tree.cache)
        for verdict in verdicts:
            member = self._members[verdict.patch.id]
            member.verdict = verdict
            if member.patch.id not in self.chosen.chosen:
                continue
            if verdict.word == "applies":
                member.status = ("pending", "")
                continue
            member.status = (verdict.word, verdict.reason)
            named = member.patch.id in self.chosen.in_full
            if verdict.word == "refused" or (verdict.word == "absent" and named):
                self._complain(member)

    def look_again(self) -> None:
        """Take off what is due, verify what is live, and put live what can be by now."""
        self._request(self._look)

    def save(self) -> None:
        """Keep what was learned about the tree for later processes; one thread at a time."""
        self._verifier.compiled.save()

    def report(self) -> Report:
        """What happened to each patch."""
        states = tuple(
            PatchState(patch, *member.status, member.ran.seen)
            for patch, member in self._members.items()
        )
        return Report(self.chosen.text, self._version, states)

    # -- the way out -----------------------------------------------------------------------------

    def stop(self) -> str:
        """Take everything off, as soon as that is safe.

        Returns:
            what it waits for; "" if everything is off.
        """
        self.is_stopping = self.over = True
        self._request(self._look)
        return "" if self.ended else self.waits_for() or "the call that this one interrupted ends"

    def leave(self, reason: str) -> None:
        """In a forked child that can't go on: every patch is to be taken off."""
        self.is_importing = False
        self._abandon(reason)

    def take_off(self, patch: str) -> None:
        """Take one patch off, as soon as that is safe; for tests and measurements."""
        self._request(partial(self._lose, self._members[patch], *_OFF))

    def waits_for(self) -> str:
        """What must end before the patches that are to be taken off are off."""
        leaving = [member for member in self._members.values() if member.end is not None]
        lines = {member.patch.id: self._why_it_stays(member) for member in leaving}
        return "; ".join(f"{patch} until {why}" for patch, why in lines.items())

    # -- requests --------------------------------------------------------------------------------

    def _request(self, work: Callable[[], None]) -> None:
        """Have work done, and let no fault of ours reach sglang.

        After a fault, and after an interruption, which the caller must see, every patch is taken
        off.
        """
        try:
            self._executor.do(partial(self._do, work), wait_s=_OTHER_THREAD_S)
            if not self._executor.is_at_work_here():
                self._speak()
        except Exception as error:
            logger.debug("unexpected", exc_info=True)
            reason = f"{type(error).__name__}: {error}"
            with contextlib.suppress(Exception):  # the next look goes on
                self._executor.do(partial(self._abandon, reason))
                self._speak()
        except BaseException:
            self.is_stopping = self.over = True
            self._executor.do(self._go_on)
            raise

    def _do(self, work: Callable[[], None]) -> None:
        self._go_on()
        try:
            work()
        except Exception as error:
            logger.debug("unexpected", exc_info=True)
            self._abandon(f"{type(error).__name__}: {error}")
        self._go_on()

    def _finish_import(self, name: str) -> None:
        if not self.over:
            self._request(partial(self._look_at, name))

    def _look_at(self, name: str) -> None:
        """Verify what relies on a module whose import ends, and put live what can be by now."""
        self._verify_live(
            member
            for member in self._working()
            if any(module_of(each) == name for each in member.definitions)
        )
        self._advance()

    def _look(self) -> None:
        changed = [
            member
            for member in self._members.values()
            if member.state == "live" and not _are_same(self._verifier.glimpse(member), member.seen)
        ]
        self._verify_live(changed)
        self._advance()

    def _go_on(self) -> None:
        """Go on with what is to be taken off, and end where that was everything."""
        if self.is_stopping and not self.ended:
            for member in self._members.values():
                if self._is_on(member):
                    member.end = _OFF  # whatever it was to have
                elif member.end is None and member.state in WAITING | WORKING:
                    self._set_status(member, *_OFF)
        self._take_off_due()
        if self.over:
            self._clear()
        if self.is_stopping and not self.ended and self._is_clear():
            self.ended = True
            self._tell(self._on_end)

    def _tell(self, observers: Callable[[], None]) -> None:
        try:
            observers()
        except Exception:
            logger.debug("an observer failed", exc_info=True)

    # -- going live ------------------------------------------------------------------------------

    def _advance(self) -> None:
        working = [m for m in self._members.values() if m.state in WAITING | WORKING]
        if self.over or not working:
            return
        names = [name for member in working for name in member.variant.modules()]
        relied_on = [module_of(each) for member in working for each in member.definitions]
        self._imports.wait_for([*names, HOOKS, *relied_on])
        if self._around_hooks is None and self._imports.is_ready(HOOKS):
            self._watch_hooks()
        before = None
        while not self.over and before != (before := self._states()):
            # Repeat after a change: if a patch fails, one that it superseded may replace it.
            for member in self._members.values():
                if not self.over and member.state in WAITING and member.end is None:
                    self._attempt(member)

    def _states(self) -> list[State]:
        return [member.state for member in self._members.values()]

    def _attempt(self, member: Member) -> None:
        """Advance a waiting patch as far as possible now: imports and runs install code."""
        if self._is_on(member):  # the thread that put it live did not come to say so
            self._set_status(member, "live", "")
            return
        for better in member.patch.superseded_by:
            if self._members[better].state in {"live", "pending"}:
                self._set_status(member, "superseded", f"{better} does its work and more")
                return
        variant = member.variant
        missing = [name for name in variant.modules() if not self._imports.is_ready(name)]
        if missing:
            self._set_status(member, "pending", f"{missing[0]} is not imported yet")
            return
        for needed in member.patch.requires:
            state = self._members[needed].state
            if state not in SERVING:
                self._lose(member, "failed", f"it needs {needed}, which is {state}")
                return
        try:
            self.is_importing = True
            install = variant.load()
            self.is_importing = False
            wrappers = self._verifier.verify(member)
            member.gate = ""
            release = (member.verdict.release if member.verdict else None) or ""
            close = partial(self._close, member)
            patching = Patching(
                *(member.patch.id, variant, release, member.ran, close),
                lambda: member.end is not None,
            )
            install(patching)
            changes = self._changes(member, patching)
        except Gated as gate:
            self._set_status(member, "gated", str(gate))
        except Foreign as foreign:
            self._lose(member, "conflict", str(foreign))
        except Exception as error:
            self.is_importing = False
            logger.debug("%s failed", member.patch.id, exc_info=True)
            if len(self._executor) > 1:
                return  # an import has ended meanwhile, which may be what was missing
            self._lose(member, "failed", f"{type(error).__name__}: {error}")
        else:
            if not self.over:
                member.drains = tuple(patching.drains)
                self._go_live(member, changes, wrappers)

    def _changes(self, member: Member, patching: Patching) -> dict[str, Change]:
        """What each slot is to show, by the reference that it is for.

        Raises:
            RuntimeError: a declared definition would stay as it is.
        """
        variant = member.variant
        layers: dict[str, list[Layer]] = {}
        for reference, make in patching.changes:
            layer = Layer(member.order, member.patch.id, make)
            layers.setdefault(reference, []).append(layer)
        unchanged = set(variant.targets + variant.adds) - set(layers)
        if unchanged:
            raise RuntimeError(f"its install function did not change {min(unchanged)} unchanged")
        return {
            reference: self._verifier.slot(member, reference).with_layers(of_reference)
            for reference, of_reference in layers.items()
        }

    def _go_live(self, member: Member, changes: Mapping[str, Change], wrappers: list[str]) -> None:
        """Change everything that a patch wants changed, or nothing."""
        member.slots = {reference: change.slot for reference, change in changes.items()}
        slots = member.slots.values()
        self._board.slots |= {(id(slot.owner), slot.name): slot for slot in slots}
        others = [other for other in self._on() if other is not member and _meet(other, changes)]
        try:
            for slot in slots:
                slot.place()
            codes = [code for slot in slots for code in slot.codes()]
            done = self._show(
                changes.values(),
                self._board.table.patches | {member.patch.id},
                codes,
                lambda: not any(other.waits_for() for other in others),
            )
        except Exception as error:
            if not self._is_on(member):
                self._settle(slots)
                member.slots = {}
            self._lose(member, "failed", f"{type(error).__name__}: {error}")
            return
        self._settle(slots)
        if not done:
            member.slots = {}
            self._set_status(member, "pending", "a thread is in a call that it would change")
        elif member.gate:
            self._set_status(member, "gated", member.gate)
        else:
            self._set_status(member, "live", _around(wrappers))
        member.seen = self._verifier.glimpse(member)

    def _close(self, member: Member, reason: str) -> None:
        """A patch reports that it now runs only stock's code. On a hot path: nothing waits."""
        member.gate = reason
        if member.state == "live":
            self._set_status(member, "gated", reason)

    # -- taking off ------------------------------------------------------------------------------

    def _lose(self, member: Member, state: State, reason: str) -> None:
        """Take a patch off for good and log it; patches that need it are taken off too."""
        if self._is_on(member):
            member.end = member.end or (state, reason)
            self._take_off_due()
        else:
            self._end({member: (state, reason)})

    def _end(self, ends: Mapping[Member, tuple[State, str]]) -> None:
        """Note that patches are off for good, and end those that need them."""
        for member, (state, reason) in ends.items():
            member.end = None
            self._set_status(member, state, reason)
            if state != "off":
                self._complain(member)
        for member, (state, _) in ends.items():
            for other in list(self._working()):
                if member.patch.id in other.patch.requires:
                    self._lose(other, "failed", f"it needs {member.patch.id}, which is {state}")

    def _take_off_due(self) -> None:
        """Take off what is to be, together where that is possible, else what can be."""
        leaving = [member for member in self._members.values() if member.end is not None]
        if not leaving:
            return
        if len(leaving) > 1 and self._take_off(leaving):
            leaving = []
        for member in reversed(leaving):
            if member.end is not None and not self._take_off([member]):
                state, reason = member.end
                why = reason and f" ({state}: {reason})"
                waits = self._why_it_stays(member)
                self._set_status(member, "live", f"to be taken off{why}: waits until {waits}")

    def _take_off(self, leaving: list[Member]) -> bool:
        """Take patches off, with those that need them, if that is safe now."""
        patches = {member.patch.id for member in leaving}
        on = list(self._on())
        while more := {m.patch.id for m in on if patches & set(m.patch.requires)} - patches:
            patches |= more
        going = [member for member in on if member.patch.id in patches]
        # Those of a patch too that an interruption left between the board's change and this.
        of = dict.fromkeys([*going, *leaving])
        slots = list(dict.fromkeys(slot for each in of for slot in each.slots.values()))
        changes = [slot.without(frozenset(patches)) for slot in slots]
        concerned = [*going, *(each for each in on if each not in going and _meet(each, slots))]
        codes = [code for slot in slots for code in slot.inert_codes()]
        if going:
            if any(each.waits_for() for each in concerned) or stacks.runs_here(codes):
                return False
            left = self._board.table.patches - patches
            if not self._show(
                changes, left, codes, lambda: not any(each.waits_for() for each in concerned)
            ):
                return False
        self._settle(slots)
        for slot in slots:
            slot.forget_results()
        for member in of:
            member.slots = {}
        # Also the ends of those that went along because they need one of these.
        self._end({each: each.end for each in of if each.end is not None})
        return True

    def _why_it_stays(self, member: Member) -> str:
        return member.waits_for() or "no thread is in a call of it"

    def _show(
        self,
        changes: Iterable[Change],
        patches: frozenset[str],
        codes: Collection[CodeType],
        is_due: Callable[[], bool],
    ) -> bool:
        changes = list(changes)
        table = self._board.table.replaced({each.slot: each for each in changes}, patches)
        keys: list[str] = []
        for change in changes:
            functions = change.slot.functions(change)
            table.__dict__.update(functions)
            keys += functions
        return self._board.exchange(table, keys, codes, is_due)

    def _settle(self, slots: Iterable[Slot]) -> None:
        """Make memory agree with the board.

        Raises:
            Exception: of the first slot where that failed; the others were settled.
        """
        failed: Exception | None = None
        for slot in slots:
            try:
                slot.settle()
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _on(self) -> Iterator[Member]:
        return (member for member in self._members.values() if self._is_on(member))

    def _is_on(self, member: Member) -> bool:
        return member.patch.id in self._board.table.patches

    def _clear(self) -> None:
        """When nothing is to go live any more: take away what is inert, and our hooks."""
        if self._around_hooks is not None and not list(self._on()):
            table = self._board.table
            change = self._around_hooks.without(frozenset({""}))
            self._board.now = table.replaced({self._around_hooks: change}, table.patches)
        self._settle(list(self._board.slots.values()))

    def _is_clear(self) -> bool:
        return not list(self._on()) and all(
            slot.layers or slot.is_left() for slot in self._board.slots.values()
        )

    def _abandon(self, reason: str) -> None:
        """After an unexpected fault: every patch is taken off, and the fault is logged."""
        first = not self.over
        self.over = True
        for member in self._members.values():
            if self._is_on(member):
                member.end = member.end or ("failed", reason)
            elif member.state in WORKING | WAITING:
                self._set_status(member, "failed", reason)
        try:
            self._go_on()
        except Exception:
            logger.debug("unexpected", exc_info=True)  # the next look goes on
        if not first:
            return
        for member in self._members.values():
            named = self._strict and member.patch.id in self.chosen.by_name
            if named and ("failed", reason) in (member.status, member.end):
                self._complain(member)
        self._messages.append(
            (logging.ERROR, f"sglang-perf-patches: every patch is removed: {reason}")
        )

    # -- whether names still hold what they should -----------------------------------------------

    def _verify_live(self, members: Iterable[Member]) -> None:
        """Verify patches; those that are undone are to be taken off."""
        for member in list(members):
            if self.over or member.state != "live" or member.end is not None:
                continue
            now = self._verifier.glimpse(member)
            try:
                wrappers = self._verifier.verify(member)
            except Foreign as foreign:
                self._lose(member, "conflict", str(foreign))
            else:
                member.seen = now
                self._set_status(member, "live", _around(wrappers))

    def _working(self) -> Iterator[Member]:
        return (member for member in self._members.values() if member.state in WORKING)

    # -- other plugins ---------------------------------------------------------------------------

    def _watch_hooks(self) -> None:
        change = around_apply_hooks(self._board, self._before_hooks, self._after_hooks)
        slot = self._around_hooks = change.slot
        self._board.slots[id(slot.owner), slot.name] = slot
        table = self._board.table
        self._board.now = table.replaced({slot: change}, table.patches)
        self._settle([slot])

    def _before_hooks(self, registry: Any) -> None:
        if not self.over:
            self._request(partial(self._step_aside, registry))

    def _step_aside(self, registry: Any) -> None:
        """Take off what a plugin is about to replace, so that it meets stock's object."""
        replaced = dict(replacements(registry))
        for member in list(self._working()):
            variant = member.variant
            for reference in variant.targets + variant.adds + variant.depends:
                whose = _whose(reference, replaced)
                if whose and member.state in WORKING and member.end is None:
                    self._lose(member, "conflict", f"{reference} is replaced by {whose}")

    def _after_hooks(self) -> None:
        if not self.over:
            self._request(self._look_at_everything)

    def _look_at_everything(self) -> None:
        """Verify again what is live, and what a removal has uncovered."""
        self._verify_live(self._working())
        self._advance()

    # -- what is said ----------------------------------------------------------------------------

    def _set_status(self, member: Member, state: State, reason: str) -> None:
        if member.status != (state, reason):
            member.status = (state, reason)
            self._tell(self._on_change)

    def _complain(self, member: Member) -> None:
        state, reason = member.end or member.status
        line = f"sglang-perf-patches: {member.patch.id} is {state}: {reason}"
        if self._strict and member.patch.id in self.chosen.by_name:
            self._loss = self._loss or line
        else:
            self._messages.append((logging.WARNING, line))

    def _speak(self) -> None:
        """Log what is due, and report a loss under STRICT; outside of the executor."""
        if self._loss:
            self._on_loss(self._loss)
        while self._messages:
            try:
                level, line = self._messages.popleft()
            except IndexError:  # another thread took it
                return
            logger.log(level, line)


def _around(wrappers: Iterable[str]) -> str:
    text = "; ".join(wrappers)
    return f"wrapped by {text}" if text else ""


def _are_same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def _meet(member: Member, of: Mapping[str, Change] | Collection[Slot]) -> bool:
    """Whether a patch shows something in one of these slots."""
    slots = [change.slot for change in of.values()] if isinstance(of, Mapping) else of
    return any(slot in slots for slot in member.slots.values())


def _whose(reference: str, replaced: Mapping[str, str]) -> str | None:
    """Whose hook replaces a definition, or something around it."""
    dotted = f"{module_of(reference)}.{qualname_of(reference)}"
    for target, whose in replaced.items():
        if dotted == target or dotted.startswith(f"{target}."):
            return whose
    return None
