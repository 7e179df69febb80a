"""The releases that the swa tests run on, and the selections of patches."""

from __future__ import annotations

from sglang_perf_patches import sets
from sglang_perf_patches.model import releases


def _newest_of_each_group() -> tuple[str, ...]:
    """The newest of each group of releases that agree in every definition that the set declares."""
    known = sets.declared("swa").known
    newest: dict[tuple[tuple[str, str], ...], str] = {}
    for release in releases.KNOWN:
        code = tuple(
            (reference, digest)
            for reference, digests in known.items()
            for digest, where in digests.items()
            if release in where
        )
        newest[code] = release
    return tuple(newest.values())


GROUPS = _newest_of_each_group()
EXACT = "swa,-swa.eviction-heap"
"""What a decode server plays, which has no prefix cache."""

ALL = f"{EXACT},swa.window-bounded-admission,swa.evict-before-retract"

if __name__ == "__main__":
    print(*GROUPS)
