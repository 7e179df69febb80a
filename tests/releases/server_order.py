"""Switch every exact patch on, then import as a server does: ``python server_order.py FIRST …``.

The release is on PYTHONPATH. After the given modules, the script also imports each module that a
waiting patch names. It prints two JSON lines: patch → its state and the reason; and module → why it
can't be imported here, for those that a waiting patch names.
"""

from __future__ import annotations

import importlib
import json
import sys

from tests.proof import stubs

stubs.lend()

import sglang_perf_patches as ours  # noqa: E402
from sglang_perf_patches import sets  # noqa: E402
from sglang_perf_patches.model.patch import by_id  # noqa: E402


def main(first: list[str]) -> None:
    """Import, and say what became of the patches."""
    ours.activate("all")
    for name in first:
        importlib.import_module(name)
    failed: dict[str, str] = {}
    waiting = [state.id for state in ours.activate().patches if state.state == "pending"]
    for id in waiting:
        for variant in by_id(sets.load())[id].variants:
            for name in variant.modules():
                try:
                    importlib.import_module(name)
                except ImportError as error:  # of another release, or it needs MLX or a GPU
                    failed[name] = str(error)
    states = {state.id: [state.state, state.reason] for state in ours.activate().patches}
    print(json.dumps(states))
    print(json.dumps({"failed": failed}))


if __name__ == "__main__":
    main(sys.argv[1:])
