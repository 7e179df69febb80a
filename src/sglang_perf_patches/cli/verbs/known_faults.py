"""What ``doctor`` prints about known faults of a release."""

from __future__ import annotations

from collections.abc import Sequence

from ...faults import of_release
from ...faults.fault import Fault
from .. import render


def of_server(release: str, found: Sequence[tuple[Fault, bool]]) -> str:
    """The faults of a server, or that none is known."""
    if not found:
        return f"No known fault of sglang {release} on this server."
    lines = [f"Known faults of sglang {release} on this server:"]
    return "\n".join([*lines, *(render.item(one.text(is_sure=is_sure)) for one, is_sure in found)])


def of_upgrade(here: str | None, there: str) -> str:
    """The faults that an upgrade fixes or brings, each of some servers; "" for none.

    Args:
        here: the installed release; None if there is none.
        there: the other release.
    """
    ours, theirs = of_release(here or ""), of_release(there)
    parts = [
        _listed(f"Known faults that {there} fixes, if your server has them:", ours, theirs),
        _listed(f"Known faults that {there} brings:", theirs, ours) if here else "",
        in_short(there),
    ]
    return "\n\n".join(filter(None, parts))


def in_short(release: str) -> str:
    """How many known faults a release has, and how to see those of a server; "" for none."""
    count = len(of_release(release))
    if not count:
        return ""
    faults = "known faults" if count > 1 else "known fault"
    return render.filled(
        f"sglang {release} has {count} {faults}. Each affects some servers only. Those of yours: "
        "sglang-perf-patches doctor -- COMMAND. All: sglang-perf-patches help symptoms"
    )


def _listed(title: str, faults: Sequence[Fault], without: Sequence[Fault]) -> str:
    items = [render.item(one.text()) for one in faults if one not in without]
    return "\n".join([title, *items]) if items else ""
