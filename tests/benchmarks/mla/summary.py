"""Compare the Engines of one file: ``python summary.py OUT.jsonl``; 1 if their tokens differ.

The lines are engine.py's, one per boot. For boots with simulated acceptance it prints the time per
token and the calls per verify step. For those with real acceptance it prints whether all gave the
same tokens. A request alone must give the same tokens in each boot. Together with others, its
tokens depend on which prompts stock happens to put into one batch, so only what all stock boots
agree on is compared.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from engine import BATCHES


def main(path: str) -> int:
    """Print the comparison; 1 if two boots disagree or one is not complete."""
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    boots: list[dict[str, Any]] = [json.loads(line) for line in lines]
    real = [boot for boot in boots if boot["acceptance"] == "real"]
    failed = not boots
    for boot in boots:
        wanted = ["per_step"] if boot not in real else [f"tokens_bs{size}" for size in BATCHES]
        ended = [name for name in wanted if name not in boot]
        failed |= bool(ended)
        print(f"{boot['tag']}: {f'ENDED before {ended[0]}' if ended else 'complete'}")
        print(f"  ran {boot.get('ran')}, left out {boot.get('left_out')}")
        if boot not in real:
            times = {size: boot.get(f"tpot_ms_bs{size}") for size in BATCHES}
            print(f"  ms per token {times}; per verify step {boot.get('per_step')}")
    for size in BATCHES if real else ():
        verdict, fails = compare(real, size)
        failed |= fails
        print(f"bs {size}: {verdict}")
    return int(failed)


def compare(boots: list[dict[str, Any]], size: int) -> tuple[str, bool]:
    """What to say of the boots' tokens at a batch size, and whether that is a failure."""
    hashes = [boot.get(f"tokens_bs{size}") for boot in boots]
    stock = {each for boot, each in zip(boots, hashes, strict=True) if boot["tag"][:4] == "none"}
    of = f"{boots[0].get(f'different_bs{size}')} different ones"
    of += f", {boots[0].get(f'tokens_per_step_bs{size}')} per verify step"
    if boots[0].get(f"different_bs{size}", 0) < 2:
        return f"tokens say nothing: {of}", True
    if len(hashes) == 1:
        return f"nothing to compare with ({of})", False
    if len(set(hashes)) == 1:
        return f"tokens equal ({of})", False
    if size > 1 and len(stock) > 1:
        return f"stock's own boots differ: {hashes}", False
    return f"tokens DIFFER: {hashes}", True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
