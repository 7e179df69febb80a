"""Compare the Engines of one file: ``python summary.py OUT.jsonl``; 1 where their tokens differ.

The lines are engine.py's, one per boot. Printed are, per batch size, whether all boots gave the
same tokens and each boot's time per token, then each boot's calls per verify step and the patches
that ran in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from engine import BATCHES


def main(path: str) -> int:
    """Print the comparison; 1 where two boots disagree or one is not complete."""
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    boots: list[dict[str, Any]] = [json.loads(line) for line in lines]
    failed = not boots
    for size in BATCHES:
        hashes = [boot.get(f"outputs_bs{size}") for boot in boots]
        same = len(set(hashes)) == 1 and None not in hashes
        failed |= not same
        times = ", ".join(f"{boot['tag']} {boot.get(f'tpot_ms_bs{size}')}" for boot in boots)
        print(f"bs {size}: tokens {'equal' if same else f'DIFFER {hashes}'}; ms per token: {times}")
    for boot in boots:
        counts = boot.get("per_step")
        failed |= counts is None
        print(f"{boot['tag']}: per verify step {counts or 'MISSING, the boot ended before'}")
        print(f"{boot['tag']}: ran {boot.get('ran')}, left out {boot.get('left_out')}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
