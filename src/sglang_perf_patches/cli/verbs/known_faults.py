"""What ``doctor`` prints about known faults of a release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...faults import of_release
from ...faults.fault import Fault
from .. import render
from ..ask.answer import Outlook
from ..table import LIVE


def of_server(
    release: str, found: Sequence[tuple[Fault, bool]], states: Mapping[str, Outlook]
) -> str:
    """The faults of a server, each with what helps there; "" for none.

    Args:
        release: the version of sglang.
        found: the faults, and whether the server surely has them.
        states: patch → its outlook in that server.
    """
    items = [
        render.item(one.text(release, is_sure=is_sure, ours=_ours(one.patch, states)))
        for one, is_sure in found
    ]
    title = f"Known faults of sglang {release} that this server keeps:"
    return "\n".join([title, *items]) if items else ""


def _ours(patch: str, states: Mapping[str, Outlook]) -> str:
    """What our patch does about a fault in that server; "" if it can do nothing there."""
    one = states.get(patch)
    if one is None:
        return ""
    if LIVE in (one.state, one.would):  # live: but the server does not load it
        return f"our {patch} prevents it once it is {'on' if one.would else 'loaded'}"
    is_gated = "gated" in (one.state, one.would)
    return f"our {patch} prevents it without what turns it off" if is_gated else ""


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
