"""Checks in memory that each name a patch changes or relies on holds what it should.

That is stock's own object, or a forwarder of ours in its place.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from ..compat.source import Definition
from ..model.patch import module_of, qualname_of
from ..model.patching import MISSING
from .compiled import Compiled, changed_default, is_at
from .dispatch_table import dispatch
from .imports import is_ready
from .patch_runtime import PatchRuntime
from .swap import Slot
from .wrappers import (
    Foreign,
    chain,
    describe,
    first_replacement,
    foreign,
    is_class_of,
    is_function,
    is_of_another_copy,
    owner_of,
    raw,
    underlying,
)


@dataclass(frozen=True)
class Stock:
    """The stock function behind a name.

    Attributes:
        function: the innermost function, whose code was compiled from the definition.
        wrappers: foreign wrappers around it, outermost first, each described with its owner.
    """

    function: FunctionType
    wrappers: tuple[str, ...]


@dataclass
class Found:
    """What `Verifier.verify` found.

    Attributes:
        wrappers: the foreign wrappers around what the patch changes.
        stock: the stock functions among what it changes and relies on, by reference.
    """

    wrappers: list[str] = field(default_factory=list)
    stock: dict[str, Stock] = field(default_factory=dict)


@dataclass(eq=False)
class Verifier:
    """Verifies patches against memory. It changes nothing.

    Attributes:
        compiled: compares code in memory with what the source compiles to.
    """

    compiled: Compiled

    def verify(self, member: PatchRuntime) -> Found:
        """Check every definition of a patch in memory, each once.

        Raises:
            Foreign: other code replaced one, or already added what the patch would add.
        """
        variant, found = member.variant, Found()
        placed = partial(self._placed, member)
        for definition in member.each_definition():
            reference = definition.reference
            if not is_ready(module_of(reference)):
                continue  # it is verified when its import ends
            check_values(definition, lambda one: placed(one) is not None)
            slot = placed(reference)
            if slot is not None:
                found.wrappers += self._require_ours(reference, slot, definition)
                continue
            stock = check(definition, self.compiled)
            if stock is not None:
                found.stock[reference] = stock
                found.wrappers += stock.wrappers if reference in variant.targets else ()
        verified = {definition.reference for definition in member.each_definition()}
        for reference in variant.adds:
            slot = placed(reference)
            if slot is not None:
                found.wrappers += self._require_ours(reference, slot)
                continue
            owner, name = owner_of(reference)
            if raw(owner, name) is not MISSING:
                raise Foreign(f"{reference} exists already: {describe(raw(owner, name))}")
            check_relatives(reference, verified)
        return found

    def slot(self, reference: str, found: Found) -> Slot:
        """The slot for a reference: the present one if it still fits, else a new one.

        Args:
            reference: a target or an added definition.
            found: what `verify` has just found.

        Raises:
            TypeError: its code can't be exchanged.
        """
        owner, name = owner_of(reference)
        slot: Slot | None = dispatch.slots.get((id(owner), name))
        if slot is not None and (slot.layers or slot.stands()):
            return slot
        stock = found.stock.get(reference)
        held, inside = raw(owner, name), None
        # Assigning the attribute would drop others' wrappers, and would miss every
        # ``from … import`` of a module's function. Exchanging the code reaches both.
        if stock and (stock.wrappers or isinstance(owner, ModuleType)):
            held = inside = stock.function
        # Other code may have kept the forwarder of a former slot, so that slot is used again.
        if slot is not None and slot.is_for(held, inside):
            return slot
        return Slot(owner, name, held, inside)

    def is_as_seen(self, member: PatchRuntime) -> bool:
        """Whether nothing that a patch relies on was replaced since its last verification."""
        now = self.identity_snapshot(member)
        return len(now) == len(member.seen) and all(map(operator.is_, now, member.seen))

    def identity_snapshot(self, member: PatchRuntime) -> list[Any]:
        """Every object that a replacement of anything relied on would exchange.

        This runs once a second for every live patch. So it only collects objects, to compare by
        identity; `verify` reads and compiles source when one of them has changed.
        """
        variant = member.variant
        read = dict.fromkeys(name for each in member.each_definition() for name in each.values)
        members = [each.reference for own in member.definitions.values() for each in own.members]
        names = (*variant.targets, *variant.adds, *variant.depends, *members, *read)
        objects: list[Any] = []
        for reference in names:
            held: Any = sys.modules.get(module_of(reference))
            for name in qualname_of(reference).split("."):
                objects += held, getattr(held, "__bases__", None)
                held = getattr(held, "__dict__", {}).get(name)
            function = underlying(held)
            objects += held, getattr(held, "__bases__", None)
            objects += getattr(function, "__code__", None), getattr(function, "__defaults__", None)
            objects += (getattr(function, "__kwdefaults__", None) or {}).values()
        objects += (getattr(slot.inside, "__code__", None) for slot in member.slots.values())
        objects += map(is_ready, dict.fromkeys(map(module_of, names)))
        return objects

    def _placed(self, member: PatchRuntime, reference: str) -> Slot | None:
        """The slot at a reference if something of ours stands there, else None.

        Raises:
            Foreign: the class that this patch changed was defined again.
        """
        owner, name = owner_of(reference)
        own = member.slots.get(reference)
        if own is not None and own.owner is not owner:
            raise Foreign(
                f"{reference} is stock's own again: its class was defined again, "
                f"for example by a reload of {module_of(reference)}"
            )
        slot: Slot | None = dispatch.slots.get((id(owner), name))
        return slot if slot is not None and (slot.layers or slot.stands()) else None

    def _require_ours(
        self, reference: str, slot: Slot, definition: Definition | None = None
    ) -> tuple[str, ...]:
        """The foreign wrappers around what a slot shows.

        Raises:
            Foreign: the name no longer leads to the slot's value.
        """
        wrappers = slot.wrappers(definition.decorators if definition else 0)
        if wrappers is not None:
            return wrappers
        try:
            again = definition is not None and check(definition, self.compiled) is not None
        except Foreign:
            again = False
        if again:
            raise Foreign(
                f"{reference} is stock's own again: somebody restored it, "
                f"or reloaded {module_of(reference)}"
            )
        held = raw(slot.owner, slot.name)
        if held is MISSING:
            raise Foreign(f"{reference} is gone from memory")
        raise Foreign(f"{reference} is replaced by {describe(held)}")


def check_values(definition: Definition, is_ours: Callable[[str], bool]) -> None:
    """Verify that each literal that a definition reads has the value in its source.

    Args:
        definition: the definition that reads them.
        is_ours: whether something of ours stands at a reference.

    Raises:
        Foreign: a value was changed, or is gone.
    """
    for reference, text in definition.values.items():
        if not is_ready(module_of(reference)):
            continue  # not imported yet, or only when the function that reads it runs
        owner: Any = sys.modules[module_of(reference)]
        *classes, name = qualname_of(reference).split(".")
        for each in classes:
            owner = vars(owner).get(each) if owner is not None else None
        held = vars(owner).get(name, MISSING) if owner is not None else MISSING
        if held is MISSING and not classes:
            raise Foreign(f"{reference}, which {definition.reference} reads, is gone from memory")
        # A class may replace its literals when it is made, as an enumeration does with members.
        is_kept = isinstance(held, int | float | str | bytes | tuple | None)
        if (is_kept or not classes) and repr(held) != text and not is_ours(reference):
            raise Foreign(
                f"{reference}, which {definition.reference} reads, is {held!r:.80} "
                f"in memory and {text} in the source"
            )


def check(definition: Definition, compiled: Compiled) -> Stock | None:
    """Verify that a definition's name holds stock's object.

    Returns:
        the stock function if the definition is a function; None for classes and values.

    Raises:
        Foreign: other code replaced the object or the class that holds it.
    """
    owner, name = owner_of(definition.reference)
    held = raw(owner, name)
    if held is MISSING:
        raise Foreign(f"{definition.reference} is gone from memory")
    if definition.is_class:
        module, qualname = module_of(definition.reference), qualname_of(definition.reference)
        if not isinstance(held, type) or not is_class_of(held, module, qualname):
            raise Foreign(f"{definition.reference} is replaced by {describe(held)}")
        _check_bases(held, definition)
        return None
    if isinstance(owner, type):
        _check_bases(owner, definition)
    if not definition.is_function:
        return None
    return stock_function(held, definition, compiled)


def check_relatives(reference: str, verified: Collection[str]) -> None:
    """Verify that no unknown base or subclass has the attribute that a patch adds to a class.

    The new attribute would hide a base's, and a subclass's would hide the new one.

    Args:
        reference: the attribute to add.
        verified: references that may exist there, because they were verified.

    Raises:
        Foreign: a base or a subclass has the name, and it is not in `verified`.
    """
    owner, name = owner_of(reference)
    if not isinstance(owner, type):
        return
    for each in (*owner.__mro__[1:-1], *_below(owner)):
        of = f"{each.__module__}:{each.__qualname__}.{name}"
        if name in vars(each) and of not in verified:
            what = "inherited from" if issubclass(owner, each) else "overridden in"
            raise Foreign(f"{reference} exists already: it is {what} {describe(each)}")


def _below(owner: type) -> Iterator[type]:
    below: list[type] = type.__subclasses__(owner)
    for each in below:
        yield each
        yield from _below(each)


def stock_function(held: Any, definition: Definition, compiled: Compiled) -> Stock:
    """Follow wrappers from what a name holds to the function that the source defines.

    Raises:
        Foreign: the chain ends at another function, a link does not call the next one, or the
            function's code, globals or defaults are not those of its source.
    """
    links = list(chain(held))
    for depth, link in enumerate(links):
        if is_of_another_copy(link):
            raise Foreign(f"{definition.reference} is patched by another copy: {describe(link)}")
        if is_function(link) and is_at(link.__code__, definition):
            replacement = first_replacement(links[: depth + 1])
            if replacement is not None:
                raise Foreign(f"{definition.reference} is replaced by {describe(replacement)}")
            if not compiled.has(link.__code__, definition):
                raise Foreign(
                    f"{definition.reference} in memory is not what its source said when it was "
                    f"judged: the file or the code in memory was changed"
                )
            # Equal code with other globals, as a copy in another module has, is another function.
            module = sys.modules[module_of(definition.reference)]
            if link.__globals__ is not vars(module):
                raise Foreign(f"{definition.reference} in memory reads the globals of other code")
            changed = changed_default(link, definition)
            if changed:
                raise Foreign(f"the default of {changed} of {definition.reference} was changed")
            # Stock's own decorators wrap too; only further wrappers come from other code.
            return Stock(link, foreign(links[: max(0, depth - definition.decorators)]))
    raise Foreign(f"{definition.reference} is replaced by {describe(links[0])}")


def _check_bases(held: type, definition: Definition) -> None:
    """Verify that a class has the bases that its source names.

    Raises:
        Foreign: a base was replaced, added or removed.
    """
    names = definition.bases
    bases = [base for base in held.__bases__ if base is not object]
    module = sys.modules.get(module_of(definition.reference))
    what = f"{held.__module__}:{held.__qualname__}"
    # Python replaces a base that is not a class, such as NamedTuple, when it makes the class.
    if any(not isinstance(getattr(module, name, type), type) for name in names if name):
        return
    for base, name in zip(bases, names, strict=False):
        if name and base.__name__ != name and getattr(module, name, None) is not base:
            raise Foreign(f"{what} has the base {describe(base)}, not {name}")
    # An unnamed base, such as Generic[T], may stand for several bases or for none.
    if all(names) and len(bases) != len([name for name in names if name != "object"]):
        raise Foreign(f"{what} has {len(bases)} bases, not {len(names)}")
