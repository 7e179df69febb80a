"""Patches go live whole in the order in which each release's server imports its modules.

sglang's modules import each other in circles, so a patch may become ready while a module that it
relies on is only half executed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import released
from sglang_perf_patches.model import releases

SCRIPT = Path(__file__).with_name("server_order.py")
SCHEDULER = "sglang.srt.managers.scheduler"
WORKER = "sglang.srt.speculative.eagle_worker_v2"


@pytest.mark.sampled
@pytest.mark.parametrize("release", releases.KNOWN)
def test_every_patch_that_applies_goes_live(release: str) -> None:
    # The scheduler imports the worker separately, late, and never imports some modules of a set.
    first = (WORKER, SCHEDULER) if releases.KNOWN.index(release) % 2 else (SCHEDULER, WORKER)
    states, imports = released.answers(released.tree(release), SCRIPT, *first)
    not_live = {
        id: state
        for id, state in states.items()
        if state[0] not in {"live", "off", "built-in", "absent"}
    }
    for id, (state, reason) in not_live.items():
        assert state == "pending", (id, state, reason)
        assert reason.partition(" ")[0] in imports["failed"], (id, reason)
    assert any(state[0] == "live" for state in states.values())
