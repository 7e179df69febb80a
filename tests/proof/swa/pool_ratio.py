"""Pools of any budget are those that stock makes at the same ratio, and hold what they must."""

from __future__ import annotations

from random import Random
from typing import Any

from sglang_perf_patches.sets.swa.pool_ratio import fit
from sglang_perf_patches.verify import Different, Inputs
from sglang_perf_patches.verify.comparing import live, require
from sglang_perf_patches.verify.stock import publish_server as publish
from tests.proof.swa.pools import cells, pools, sizes

PATCH = "swa.pool-ratio"

DERIVED = tuple(
    (40 << 30, {"window": 128, "full": 12, "windowed": 12, "page_size": page}) for page in (1, 64)
)
"""Budgets for which every release derives the ratio."""

Load = dict[str, Any]


def budgets(inputs: Inputs) -> int:
    """Drawn budgets, and `DERIVED`."""
    loads = [*inputs(drawn, 24), *DERIVED]
    stock = [pools_or_none(*load) for load in loads]
    publish(max_running_requests=64)
    with live(PATCH):
        patched = [pools_or_none(*load, published=True) for load in loads]
    for plain, ours in zip(stock[-len(DERIVED) :], patched[-len(DERIVED) :], strict=True):
        if plain is None or ours is None:
            raise Different(f"{PATCH}: 40 GiB are refused")
        apart = ours[1]._swa_full_tokens_ratio != plain[1]._swa_full_tokens_ratio
        require(apart, f"{PATCH}: stock's own ratio, though the server is served")
    for (available, load), plain, ours in zip(loads, stock, patched, strict=True):
        where = f"{PATCH}, {available} bytes, {load}"
        if plain is None or ours is None:
            require(plain is None and ours is None, f"{where}: one of them refuses the budget")
        else:
            _compare(where, available, load, plain, ours)
    return len(loads)


def _compare(
    where: str, available: int, load: Load, plain: tuple[Any, Any], ours: tuple[Any, Any]
) -> None:
    full, swa = sizes(ours[0])
    ratio, stocks = (side[1]._swa_full_tokens_ratio for side in (ours, plain))
    if ratio == stocks:
        require((full, swa) == sizes(plain[0]), f"{where}: other pools at stock's ratio")
        return
    require(full >= sizes(plain[0])[0], f"{where}: the full pool shrank")
    require(swa <= sizes(plain[0])[1], f"{where}: the sliding-window pool grew")
    least = load.get("max_running_requests", 64)
    require(swa >= ours[1]._swa_needs.with_tails(least), f"{where}: too small a pool")
    a_full, a_windowed = cells(plain[1])
    require(full * a_full + swa * a_windowed <= available, f"{where}: more than the budget")
    wanted = fit(
        ours[1]._swa_needs, full_cell=a_full, swa_cell=a_windowed, ratio=stocks, available=available
    )
    if wanted is None:
        raise Different(f"{where}: no other ratio is needed")
    # The pool is cut down to whole pages, and the ratio was made for one page more.
    require(abs(swa - wanted.swa) <= 2 * load["page_size"], f"{where}: not {wanted.swa} tokens")
    at_this_ratio, _ = pools(available, **load | {"swa_full_tokens_ratio": ratio})
    # The sum of two products may differ in its last digit.
    apart = [abs(a - b) for a, b in zip(sizes(at_this_ratio), (full, swa), strict=True)]
    require(
        max(apart) <= load["page_size"],
        f"{where}: stock makes {sizes(at_this_ratio)} at this ratio",
    )


def drawn(random: Random) -> tuple[int, Load]:
    full, windowed = random.choice(((12, 12), (10, 52), (4, 20), (18, 18)))
    return 1 << random.randint(30, 37), {
        "window": random.choice((128, 512, 1024, 4096)),
        "page_size": random.choice((1, 16, 64)),
        "full": full,
        "windowed": windowed,
        "max_running_requests": random.randint(1, 600),
    }


def pools_or_none(available: int, load: Load, *, published: bool = False) -> tuple[Any, Any] | None:
    """A budget's pools, None where stock refuses it; `published`: the process is that server."""
    if published:
        publish(page_size=load["page_size"], max_running_requests=64)
    try:
        return pools(available, **load)
    except (RuntimeError, ValueError):
        return None


CHECKS = {"budgets": budgets}
