"""A patch as the core, the command, the pages and the tests read it; `declaration` makes it.

What a patch does, why and for whom is on its page (see `patch_page`). It names *definitions* of
sglang by reference, ``"package.module:Qual.name"``, without importing them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from .patching import Patching

Kind = Literal["exact", "policy"]
"""``exact``: the same values for the same batch. ``policy``: it changes which requests are
admitted, evicted or retracted, or values by rounding; it is on only if chosen by its full name."""


@dataclass(frozen=True, kw_only=True)
class Marker:
    """Evidence that upstream has a change built in: a definition whose source contains a text."""

    definition: str
    contains: str = ""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One body of ours, with the releases whose code it was proven on."""

    # Or source builds (``git-…``). Every target has a fingerprint for each of them.
    releases: tuple[str, ...]
    install: Callable[[Patching], None]  # declares what changes; see `patching.Patching`
    targets: tuple[str, ...]  # definitions that the patch changes
    adds: tuple[str, ...] = ()  # which must not exist yet, in the source or in memory
    # What it relies on without changing it: in each release what that has by its fingerprints.
    depends: tuple[str, ...] = ()
    awaits: tuple[str, ...] = ()  # further modules that must be imported before it can go live
    note: str = ""  # what is special about these releases, for ``explain``
    not_with: tuple[str, ...] = ()  # features of `Patch.proven_with` without a proof here
    only_with: tuple[str, ...] = ()  # further uses, as `Patch.only_with`

    def modules(self) -> tuple[str, ...]:
        """The modules whose import this variant waits for, in order and without repetition."""
        changed = (module_of(reference) for reference in self.targets + self.adds)
        return tuple(dict.fromkeys((*changed, *self.awaits)))


@dataclass(frozen=True)
class Worth:
    """Why a patch is on by default.

    Rule ``a``: a server that operators run was measured to gain at least 3 % of time to first
    token, time per token or throughput, or 10 % of memory, beyond the spread; ``b``: it prevents a
    fault; ``c``: it is one of the upstream changes that the project was made for.
    """

    rule: Literal["a", "b", "c"]
    because: str  # one line: what gains or fails, or which upstream change it is
    source: str = ""  # for ``a``, the committed results, relative to a checkout
    row: str = ""  # for ``a``, the id of the row with the figure


@dataclass(frozen=True, kw_only=True)
class Patch:
    """The smallest thing that can be on or off."""

    id: str  # "set.name"
    kind: Kind = "exact"
    summary: str  # one line for ``list``
    worth: Worth | None = None  # why it is on by default; None for a policy
    upstream: tuple[str, ...] = ()  # pull requests: "sgl-project/sglang#1"
    upstream_note: str = ""  # what upstream offers but has not built in, as half a sentence
    built_in_since: str | None = None  # the first release that needs no patch
    # Evidence that it is built in; all must hold. They are checked before fingerprints, so that an
    # operator's own backport is left alone.
    markers: tuple[Marker, ...] = ()
    # Definitions of which one must exist, else the patch is ``absent``; if empty, every target.
    anchors: tuple[str, ...] = ()
    absent_because: str = "the code that it would change is not there"
    variants: tuple[Variant, ...] = ()
    requires: tuple[str, ...] = ()  # patches that must be chosen too, and apply or be built in
    # Feature (see `setups`) → the check that runs the patch with it. On a server with any other
    # feature the patch is gated. None: no feature gates it.
    proven_with: Mapping[str, str] | None = None
    # Uses (see `setups`). On a server known to lack one the patch is not needed, or gated.
    only_with: tuple[str, ...] = ()
    # Features and uses of the server on which the page's gain was measured, separated by spaces, as
    # far as the gain depends on them; ``-word`` was off. If the page has rows for several set-ups,
    # `` | `` separates theirs. On another server ``doctor -- COMMAND`` says that none was measured.
    gain_with: str = ""

    @property
    def is_default(self) -> bool:
        """Whether ``all`` and the set's name choose it."""
        return self.kind == "exact"

    @property
    def set(self) -> str:
        """The family that the patch belongs to."""
        return self.id.partition(".")[0]

    def proven_in(self, variant: Variant | None) -> Patch:
        """This patch with the features that one of its variants was proven with, and its uses."""
        if variant is None or not (variant.not_with or variant.only_with):
            return self
        kept = self.proven_with and {
            name: by for name, by in self.proven_with.items() if name not in variant.not_with
        }
        return replace(self, proven_with=kept, only_with=self.only_with + variant.only_with)

    def references(self) -> tuple[str, ...]:
        """Every definition that the variants change or rely on, without repetition."""
        each = (name for one in self.variants for name in one.targets + one.depends)
        return tuple(dict.fromkeys(each))


@dataclass(frozen=True)
class PatchSet:
    """A family of patches, and the fingerprints that its variants were proven on."""

    name: str  # the word that switches the set
    summary: str  # one line for the README
    patches: tuple[Patch, ...]  # in the order of their layers, the one nearest to stock first
    # Reference → {digest of the definition → releases that have it}.
    known: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)


def room_of(patch_id: str) -> str:
    """A patch's package below ``sets``: ``"mlx.kv-arena"`` → ``"mlx.kv_arena"``."""
    return patch_id.replace("-", "_")


def of(owner: str, *names: str) -> tuple[str, ...]:
    """References to attributes of a class: ``of("a:C", "d", "e")`` → ``("a:C.d", "a:C.e")``."""
    return tuple(f"{owner}.{name}" for name in names)


def module_of(reference: str) -> str:
    """``"a.b:C.d"`` → ``"a.b"``."""
    return reference.partition(":")[0]


def qualname_of(reference: str) -> str:
    """``"a.b:C.d"`` → ``"C.d"``."""
    return reference.partition(":")[2]


def by_id(sets: Iterable[PatchSet]) -> dict[str, Patch]:
    """Every patch of the sets, in declared order."""
    return {patch.id: patch for patch_set in sets for patch in patch_set.patches}
