"""The rule by which a server's features and uses keep a patch off.

A running server applies it after each publication of its arguments (`live.registry`). ``doctor --
COMMAND`` applies it before a boot, to arguments that the release has resolved and published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from .feature import UNPROVEN, Setup
from .patch import Patch
from .setups import OTHER_GPU
from .uses import GATES

Ruling = tuple[Literal["not needed", "gated"], str]
"""A state (`state.State`), and why."""


def ruling(
    patch: Patch,
    needed: Iterable[Patch],
    setup: Setup,
    lacking_record: Callable[[Patch], str | None] = lambda _: "",
) -> Ruling | None:
    """Why a patch does not go live on a server; None if it may, unless its own code gates it.

    A patch is ``not needed`` if the server is known to lack something that the patch is for
    (`Patch.only_with`): MLX, speculation, a model with windows or states. That comes first, because
    then a feature that nobody tested makes no difference. Else it is ``gated`` if the server lacks
    one of `uses.GATES`, or has a feature on that the patch was not proven with
    (`Patch.proven_with`).

    Args:
        patch: its declaration.
        needed: the patches that it requires and that apply on this server's release.
        setup: the server's features and uses.
        lacking_record: None if a record proves a patch on this GPU, which lifts `OTHER_GPU` and
            nothing else; otherwise what to add to the reason.
    """
    lacking = [
        (use, _whose(each, patch) + setup.lacking[use])
        for each in (patch, *needed)
        for use in each.only_with
        if use in setup.lacking
    ]
    for use, why in lacking:
        if use not in GATES:
            return "not needed", why
    for _, why in lacking:
        return "gated", why
    for each in (patch, *needed):
        for name, clause in setup.on.items():
            if each.proven_with is not None and name not in each.proven_with:
                more = lacking_record(each) if name == OTHER_GPU else ""
                if more is not None:
                    return "gated", _whose(each, patch) + clause + UNPROVEN + more
    return None


def _whose(each: Patch, patch: Patch) -> str:
    return "" if each is patch else f"it needs {each.id}: "
