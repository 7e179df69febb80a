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
    """Evidence in the source that upstream has a change built in.

    Attributes:
        definition: must exist.
        contains: text that its source must contain; "" for none.
    """

    definition: str
    contains: str = ""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One body of ours, with the releases whose code it was proven on.

    Attributes:
        releases: names of releases or of source builds (``git-…``). Every target has a
            fingerprint for each of them.
        install: declares what changes; see `patching.Patching`.
        targets: definitions that the patch changes.
        adds: definitions that it adds. They must not exist yet, in the source or in memory.
        depends: definitions that it relies on without changing them; in each release, those that
            the release has by its fingerprints.
        awaits: modules, beyond those of targets and adds, that must be imported before the patch
            can go live.
        note: what is special about these releases, for ``explain``.
        not_with: features of `Patch.proven_with` that it was not proven with in these releases.
        only_with: further uses of `Patch.only_with` in these releases.
    """

    releases: tuple[str, ...]
    install: Callable[[Patching], None]
    targets: tuple[str, ...]
    adds: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    awaits: tuple[str, ...] = ()
    note: str = ""
    not_with: tuple[str, ...] = ()
    only_with: tuple[str, ...] = ()

    def modules(self) -> tuple[str, ...]:
        """The modules whose import this variant waits for, in order and without repetition."""
        changed = (module_of(reference) for reference in self.targets + self.adds)
        return tuple(dict.fromkeys((*changed, *self.awaits)))


@dataclass(frozen=True)
class Worth:
    """Why a patch is on by default.

    Attributes:
        rule: ``a``: a server that operators run was measured to gain at least 3 % of time to first
            token, time per token or throughput, or 10 % of memory, beyond the spread; ``b``: it
            prevents a fault; ``c``: it is one of the upstream changes that the project was made
            for.
        because: one line: what gains or fails, or which upstream change it is.
        source: for ``a``, the committed results, relative to a checkout.
        row: for ``a``, the id of the row with the figure.
    """

    rule: Literal["a", "b", "c"]
    because: str
    source: str = ""
    row: str = ""


@dataclass(frozen=True, kw_only=True)
class Patch:
    """The smallest thing that can be on or off.

    Attributes:
        id: ``"set.name"``.
        kind: see `Kind`.
        summary: one line for ``list``.
        worth: why it is on by default; None for a policy.
        upstream: pull requests, ``"sgl-project/sglang#1"``; empty if upstream has none.
        upstream_note: what upstream offers but has not built in, as half a sentence.
        built_in_since: the first release that needs no patch; None if all do.
        markers: evidence that it is built in; all must hold. They are checked before fingerprints,
            so that an operator's own backport is left alone.
        anchors: definitions of which at least one must exist, else the patch is ``absent``. If
            empty, the targets of all variants are the anchors.
        absent_because: why there is nothing to do if no anchor exists.
        variants: bodies of ours, each for its releases.
        requires: ids of patches that must be chosen too, and apply or be built in.
        proven_with: feature (see `model.setups`) → the check that runs the patch with it. On a
            server with any other feature the patch is gated. None: no feature gates it.
        only_with: uses (see `model.uses`). On a server that is known to lack one of them the patch
            is not needed, or gated (see `model.ruling`).
        gain_with: features and uses of the server on which the page's gain was measured, separated
            by spaces, as far as the gain depends on them; ``-word`` was off. If the page has rows
            for several set-ups, `` | `` separates theirs. On another server ``doctor -- COMMAND``
            says that no gain was measured.
    """

    id: str
    kind: Kind = "exact"
    summary: str
    worth: Worth | None = None
    upstream: tuple[str, ...] = ()
    upstream_note: str = ""
    built_in_since: str | None = None
    markers: tuple[Marker, ...] = ()
    anchors: tuple[str, ...] = ()
    absent_because: str = "the code that it would change is not there"
    variants: tuple[Variant, ...] = ()
    requires: tuple[str, ...] = ()
    proven_with: Mapping[str, str] | None = None
    only_with: tuple[str, ...] = ()
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
        return tuple(
            dict.fromkeys(
                reference
                for variant in self.variants
                for reference in variant.targets + variant.depends
            )
        )

    def all_anchors(self) -> tuple[str, ...]:
        """The declared anchors, or every target."""
        if self.anchors:
            return self.anchors
        return tuple(dict.fromkeys(ref for variant in self.variants for ref in variant.targets))


@dataclass(frozen=True)
class PatchSet:
    """A family of patches, and the fingerprints that its variants were proven on.

    Attributes:
        name: the word that switches the set.
        summary: one line for the README.
        patches: in the order of their layers in a shared target, the one nearest to stock first.
        known: reference → {digest of the definition → releases that have it}.
    """

    name: str
    summary: str
    patches: tuple[Patch, ...]
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
