"""What the counter of waits finds in statements; `on_release` runs ``counted``."""

from typing import Any

import torch

from tests.proof.mamba.waits import DEVICE, Counter


def counted(statements: list[str]) -> dict[str, int | str]:
    """The number of waits of each statement, or "refused".

    In a statement `d` and `m` are five numbers and a mask on the device, and `s` is a scalar there.
    `h`, `b` and `n` are the same on the host. `launch` is a kernel's.
    """
    counts: dict[str, int | str] = {}
    for statement in statements:
        counter = Counter()
        names: dict[str, Any] = {"torch": torch, "D": DEVICE, "launch": counter.launch}
        names |= {"h": torch.arange(5), "b": torch.arange(5) > 2, "n": torch.tensor(3)}
        names |= {"d": torch.arange(5), "m": torch.arange(5) > 2, "s": torch.tensor(3)}
        counter.own(names["d"], names["m"], names["s"])
        try:
            with counter:
                exec(statement, names)
            counts[statement] = len(counter.found)
        except AssertionError:
            counts[statement] = "refused"
    return counts
