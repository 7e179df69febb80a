"""The patches of a process, from the choice to stock again.

What is chosen, and whose verdict is ``applies``, goes live when its modules have been imported (see
`entry`). What may change it calls for a look: the end of an import, sglang's
``HookRegistry.apply_hooks``, which runs after every plugin, a publication of the server's
arguments, and a regular tick. A look verifies again what has changed. If a definition was replaced,
or if the server has something on that the patch was not proven with (see `published`), the whole
patch is to be taken off. That happens while no thread is inside it and it holds no work (see
`removal`).

Each step is done by the executor, one at a time, and may be repeated.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterable
from functools import partial

from ..compat.source import Tree
from ..compat.verdict import Verdict
from ..model.feature import Features
from ..model.patch import Patch, module_of
from ..model.selection import Selection
from ..model.state import PatchState, Report, State
from .compiled import Compiled
from .dispatch_table import DispatchTable
from .entry import Entry, around
from .executor import Executor
from .imports import Imports, Watched
from .patch_runtime import WORKING, Notices, Registry
from .published import Gatekeeper
from .removal import Removal
from .verifier import Verifier
from .wrappers import Foreign

logger = logging.getLogger("sglang_perf_patches")

# Install code may import what the very thread imports that waits for it.
_OTHER_THREAD_S = 1.0
_OFF: tuple[State, str] = ("off", "")
_HOOKS = "sglang.srt.plugins.hook_registry"


class Activation:
    """The patches of this process. There is one at a time.

    Attributes:
        selection: of the patches.
        is_observed: whether observers know that it has started.
        is_stopping: it was stopped: everything is to be taken off.
        ended: it was stopped, and everything is off. After a fault it is not: it still reports it.
    """

    def __init__(
        self,
        patches: Iterable[Patch],
        selection: Selection,
        *,
        strict: bool,
        features: Features,
        dispatch: DispatchTable,
        executor: Executor,
        on_change: Callable[[], None],
        on_end: Callable[[Activation], None],
        on_loss: Callable[[str], None],
    ) -> None:
        """Change nothing yet.

        Args:
            patches: all there are, in declared order.
            selection: those that are to go live.
            strict: whether the loss of one that was chosen by name is more than a warning.
            features: what a server may have on that a patch was not proven with.
            dispatch: what this process shows.
            executor: does all that changes something.
            on_change: called when the state of a patch changed.
            on_end: called with this one when everything is off again.
            on_loss: called outside of the executor, under `strict`, with the line to show.
        """
        self.selection = selection
        self.is_observed = False
        self.is_stopping = False
        self.ended = False
        self._version = "unknown"
        self._executor = executor
        self._on_end = on_end
        self._registry = Registry(patches, dispatch)
        self._notices = Notices(selection.by_name if strict else (), on_change, on_loss)
        self._imports = Imports(self.look_again)
        self._verifier = Verifier(dispatch, self._imports, Compiled())
        self._hooks = Watched(dispatch, self.look_again)
        self._removal = Removal(self._registry, self._notices)
        self._gatekeeper = Gatekeeper(
            *(features, dispatch, self._registry, self._removal, self.look_again)
        )
        self._entry = Entry(
            self._registry,
            self._imports,
            self._verifier,
            self._removal,
            self._notices,
            self._gatekeeper,
            executor,
        )

    # -- what is asked of it ---------------------------------------------------------------------

    def take(self, tree: Tree, verdicts: Iterable[Verdict]) -> None:
        """Note what was judged of a sglang tree, for the patches that are chosen."""
        self._version = tree.version
        self._verifier.compiled = Compiled(tree.cache)
        for verdict in verdicts:
            member = self._registry[verdict.patch.id]
            member.verdict = verdict
            if member.patch.id not in self.selection.ids:
                continue
            if verdict.word == "applies":
                member.status = ("pending", "")
                continue
            member.status = (verdict.word, verdict.reason)
            is_named_in_full = member.patch.id in self.selection.in_full
            if verdict.word == "refused" or (verdict.word == "absent" and is_named_in_full):
                self._notices.complain(member)

    def look_again(self) -> None:
        """Verify what is live, take off what is due, and put live what can be by now."""
        self._request(self._look)

    def look_now(self) -> None:
        """The same, inside of a request."""
        self._do(self._look)

    def save(self) -> None:
        """Keep what was learned about the tree for later processes; one thread at a time."""
        self._verifier.compiled.save()

    def report(self) -> Report:
        """What happened to each patch."""
        states = tuple(PatchState(m.patch.id, *m.status, m.ran.seen) for m in self._registry)
        return Report(self.selection.text, self._version, states)

    def stop(self) -> None:
        """Have the next look take everything off."""
        self.is_stopping = self._registry.over = True

    def leave(self, reason: str) -> None:
        """In a forked child that can't go on: every patch is to be taken off."""
        self._entry.is_preparing = False
        self._abandon(reason)

    def take_off(self, patch: str) -> None:
        """Take one patch off, as soon as that is safe; for tests and measurements."""
        self._request(partial(self._removal.lose, self._registry[patch], *_OFF))

    def waits_for(self) -> str:
        """What must end before the patches that are to be taken off are off."""
        return self._removal.waits_for()

    @property
    def over(self) -> bool:
        """Whether nothing goes live any more."""
        return self._registry.over

    @property
    def is_preparing(self) -> bool:
        """Whether code of ours is being imported or installed, by the thread that is at work."""
        return self._entry.is_preparing

    def speak(self) -> None:
        """Log what is due, and report a loss; outside of the executor."""
        self._notices.speak()

    # -- requests --------------------------------------------------------------------------------

    def _request(self, work: Callable[[], None]) -> None:
        """Have work done; no fault of ours reaches sglang."""
        try:
            self._executor.do(partial(self._do, work), wait_s=_OTHER_THREAD_S)
        except Exception as error:
            logger.debug("unexpected", exc_info=True)
            with contextlib.suppress(Exception):  # the next look goes on
                self._executor.do(partial(self._abandon, f"{type(error).__name__}: {error}"))

    # -- what the executor does ------------------------------------------------------------------

    def _do(self, work: Callable[[], None]) -> None:
        """Do work, and what is due after it.

        No fault of ours reaches sglang: after one, every patch is taken off.
        """
        try:
            work()
            self._go_on()
        except Exception as error:
            logger.debug("unexpected", exc_info=True)
            self._abandon(f"{type(error).__name__}: {error}")

    def _look(self) -> None:
        """Verify what is live and not as it was; those that are undone are to be taken off."""
        for member in self._registry.working():
            if self.over or member.state != "live" or member.end is not None:
                continue
            if self._verifier.is_as_seen(member):
                continue
            now = self._verifier.identity_snapshot(member)
            try:
                found = self._verifier.verify(member)
            except Foreign as foreign:
                self._removal.lose(member, "conflict", str(foreign))
            else:
                member.seen = now
                self._notices.set_status(member, "live", around(found.wrappers))
        self._gatekeeper.act()

    def _go_on(self) -> None:
        """Take off what is to be, put live what can be by now, and end where all is off."""
        if self.is_stopping and not self.ended:
            self._removal.end_all(*_OFF)
        self._removal.go_on()
        self._advance()
        if self._removal.has_more:  # what failed to go live takes along what needs it
            self._removal.go_on()
        if self.over and not self._registry.on():
            self._hooks.leave()
            self._gatekeeper.leave()
        # This also repairs what an interruption or a fault has left in memory. Nobody who calls
        # that meanwhile notices: a forwarder calls stock's code.
        self._registry.settle()
        if self.is_stopping and not self.ended and self._registry.is_clear():
            self.ended = True
            self._imports.leave()
            self._notices.tell(partial(self._on_end, self))

    def _advance(self) -> None:
        """Wait for imports, and put live what can be by now."""
        working = [member for member in self._registry if member.state in WORKING]
        if self.over or not working:
            return
        names = [name for member in working for name in member.variant.modules()]
        relied_on = [module_of(each) for member in working for each in member.definitions]
        self._imports.wait_for([*names, _HOOKS, *relied_on])
        if self._imports.is_ready(_HOOKS):
            self._hooks.begin(sys.modules[_HOOKS].HookRegistry, "apply_hooks")
        self._gatekeeper.watch(self._imports)
        self._entry.advance()

    def _abandon(self, reason: str) -> None:
        """After an unexpected fault: every patch is taken off, and the fault is logged."""
        first, self._registry.over = not self.over, True
        self._removal.end_all("failed", reason)
        try:
            self._go_on()
        except Exception:
            logger.debug("unexpected", exc_info=True)  # the next look goes on
        if first:
            failed = ("failed", reason)
            self._notices.lose_all(
                reason, [each for each in self._registry if failed in (each.status, each.end)]
            )
