"""Running the same cases on stock sglang and with a patch live, and comparing what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from liveness import differs, live

EXAMPLES = 6


def compare(
    patch: str,
    run: Callable[[Any], Any],
    cases: st.SearchStrategy[Any],
    *,
    examples: int = EXAMPLES,
    ran: bool = True,
) -> int:
    """Run the same cases on stock and with the patch; every result must be equal.

    Returns:
        how many cases ran.
    """
    stock = _collect(run, cases, examples)
    with live(patch, ran=ran):
        patched = _collect(run, cases, examples)
    assert [case for case, _ in stock] == [case for case, _ in patched]
    assert stock, "no case was generated"
    for (case, expected), (_, found) in zip(stock, patched, strict=True):
        difference = differs(expected, found)
        assert difference is None, f"{patch}, {case}: {difference}"
    return len(stock)


def _collect(
    run: Callable[[Any], Any], cases: st.SearchStrategy[Any], examples: int
) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def each(case: Any) -> None:
        text = repr(case)
        found.append((text, run(case)))

    each()
    return found
