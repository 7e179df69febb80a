"""The releases that the swa tests run on, and the selections of patches."""

from __future__ import annotations

from matrix import newest_of_each_group

GROUPS = newest_of_each_group("swa")
EXACT = "swa,-swa.eviction-heap"
"""What a decode server plays, which has no prefix cache."""

ALL = f"{EXACT},swa.window-bounded-admission,swa.evict-before-retract"

if __name__ == "__main__":
    print(*GROUPS)
