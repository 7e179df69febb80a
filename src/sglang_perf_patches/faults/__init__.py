"""Known faults of released sglang, and which of them a server has.

`known` has the data, and nothing else names a fault. A running server reads it once, when it
logs that it is ready; ``doctor`` and the page of ``help symptoms`` read it too.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from ..model import releases
from ..model.feature import Server
from . import known
from .fault import Fault


def of_release(release: str) -> tuple[Fault, ...]:
    """The known faults of a release, in the order of the data."""
    return tuple(one for one in known.FAULTS if release in releases.from_spans(one.releases))


def conditions(server: Server) -> dict[str, bool]:
    """Name → whether surely, of each fault whose condition holds for a server on any release."""
    said = {fault.name: fault.is_on(server) for fault in known.FAULTS}
    return {name: is_on is True for name, is_on in said.items() if is_on is not False}


def found(
    release: str, held: Mapping[str, bool], live: Container[str] = ()
) -> list[tuple[Fault, bool]]:
    """The faults that a server has or may have, and whether surely; `held`: see `conditions`.

    Without those that one of its `live` patches prevents.
    """
    there = [one for one in of_release(release) if one.name in held and one.patch not in live]
    return [(one, held[one.name]) for one in there]
