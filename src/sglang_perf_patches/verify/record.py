"""What ``verify`` keeps for servers: that a patch equalled stock on this GPU (`verified`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import verified
from ..compat.verdict import Verdict
from ..model.setups import OTHER_GPU
from ..telemetry import records
from .runner import Outcome


def before(judged: Sequence[Verdict]) -> dict[str, list[dict[str, Any]]]:
    """The records that `keep` may write, by patch: of those that only a record lets run here.

    Call it before the comparison, so that a record names the code that was compared.
    """
    possible = {}
    for verdict in judged:
        proven_with = verdict.patch.proven_in(verdict.variant).proven_with
        if verdict.word == "applies" and proven_with is not None and OTHER_GPU not in proven_with:
            possible[verdict.patch.id] = verified.records(verdict)
    return possible


def keep(prepared: Mapping[str, list[dict[str, Any]]], outcomes: Sequence[Outcome]) -> list[str]:
    """Write a record for each patch of which every case was equal, or is needless on this GPU.

    Returns a line for each such patch: where its record is, or why it has none.
    """
    lines = []
    for patch_id, possible in prepared.items():
        of_it = [each for each in outcomes if each.patch == patch_id]
        gpus = {each.gpu for each in of_it}
        is_whole = all(each.word == "equal" or each.needless for each in of_it)
        if not is_whole or not any(each.compared and each.device == "cuda" for each in of_it):
            continue
        found = [each for each in possible if {(each["gpu"], each["capability"])} == gpus]
        try:
            if not found:
                raise OSError("the driver does not name the GPU that was used")
            place = verified.path(found[0])
            records.write(place, found[0])
            lines.append(f"{patch_id}: recorded for servers on this GPU, in {place.parent}")
        except (OSError, records.RecordError) as error:
            lines.append(f"{patch_id}: no record for servers: {error}")
    return lines
