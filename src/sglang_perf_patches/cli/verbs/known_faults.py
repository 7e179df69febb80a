"""What ``doctor`` prints about known faults of a release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...faults import of_release
from ...faults.fault import Fault
from .. import render
from ..ask.answer import Outlook
from ..table import LIVE


def counted(release: str, could: int, kept: int) -> str:
    """How many known faults a server `could` have without patches, and `kept` with its patches."""
    known = len(of_release(release))
    if not known:
        return f"We know no fault of sglang {release}."
    prevented = f"; patches prevent {could - kept} of them" if kept < could else ""
    if could and not kept:
        prevented = "; patches prevent all of them" if could > 1 else "; a patch prevents it"
    can = f"{could or 'none'} can occur in this set-up{prevented}"
    return f"Of the {known} known faults of sglang {release}, {can}."


def of_server(
    release: str, found: Sequence[tuple[Fault, bool]], states: Mapping[str, Outlook]
) -> str:
    """The faults that a server keeps, surely or not, each with what helps there; "" for none."""
    title = f"Known faults of sglang {release} that remain in this server:"
    texts = (one.text(release, is_sure=is_sure, ours=_ours(one, states)) for one, is_sure in found)
    return _listed(title, texts)


def _ours(fault: Fault, states: Mapping[str, Outlook]) -> str:
    """What our patch does about a fault in that server; "" if it can do nothing there."""
    one = states.get(fault.patch)
    if one is None:
        return ""
    if LIVE in (one.state, one.would):  # live: but the server does not load it
        return f"our {one.patch} prevents it once it is {'on' if one.would else 'loaded'}"
    is_gated = "gated" in (one.state, one.would)
    return f"our {one.patch} prevents it without what turns it off" if is_gated else ""


def of_upgrade(here: str | None, there: str) -> str:
    """The faults that an upgrade from `here` (None: nothing is installed) fixes or brings."""
    ours, theirs = of_release(here or ""), of_release(there)
    fixed = (one.text() for one in ours if one not in theirs)
    brought = (one.text() for one in theirs if here and one not in ours)
    parts = [
        _listed(f"Known faults that {there} fixes, if your server has them:", fixed),
        _listed(f"Known faults that {there} brings:", brought),
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


def _listed(title: str, texts: Iterable[str]) -> str:
    items = [*map(render.item, texts)]
    return "\n".join([title, *items]) if items else ""
