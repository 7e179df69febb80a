"""``mlx.decode-context`` on 0.5.11 with sgl-project/sglang#23470 undone.

The counts below are those of the code before #23470, found on the source build from which the
patch's fingerprints come.
"""

from typing import Any

LAYERS = 4
PATCHED = "mlx.decode-context"


def test_every_forward_pass_gives_the_same_logits(found: Any) -> None:
    outcomes = found("0.5.11", "before_23470")
    assert set(outcomes) == {"released", "undone", PATCHED, "again"}
    for outcome in outcomes.values():
        assert outcome["played"] == outcomes["released"]["played"]


def test_arrays_of_lengths_are_made_once_a_step(found: Any) -> None:
    """The lengths before and after the new token, and the positions up to the longest."""
    outcomes = found("0.5.11", "before_23470")
    assert outcomes["undone"]["calls"]["array"] == 2 * LAYERS
    assert outcomes["undone"]["calls"]["arange"] == LAYERS
    assert outcomes["again"]["calls"] == outcomes["undone"]["calls"]
    assert outcomes[PATCHED]["calls"]["array"] == 2
    assert outcomes[PATCHED]["calls"]["arange"] == 1
    assert outcomes[PATCHED]["state"]["state"] == "live"
    assert outcomes[PATCHED]["state"]["ran"]


def test_the_graph_has_as_few_ranges_as_the_released_code(found: Any) -> None:
    outcomes = found("0.5.11", "before_23470")
    ranges = {what: outcome["counted"]["Arange"] for what, outcome in outcomes.items()}
    assert ranges["undone"] == ranges["released"] + LAYERS - 1
    assert ranges[PATCHED] == ranges["released"]


def test_padding_and_mask_stay_per_layer(found: Any) -> None:
    outcomes = found("0.5.11", "before_23470")
    for what in ("released", "undone", PATCHED):
        assert outcomes[what]["calls"]["where"] == LAYERS
        assert outcomes[what]["calls"]["zeros"] == 2 * 3 * LAYERS
