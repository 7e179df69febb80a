"""No command that people run loses a patch: the table of `recipes`, against the newest release."""

from __future__ import annotations

import pytest

from tests.releases.recipes import outcomes
from tests.releases.recipes.commands import RECIPES
from tests.releases.recipes.outcomes import Outcome

pytestmark = pytest.mark.whole_matrix  # it resolves all commands, in a minute


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return outcomes.ask(tmp_path_factory.mktemp("models"))


def test_no_recipe_loses_a_patch(found: dict[str, Outcome]) -> None:
    expected = outcomes.expected()
    assert set(expected) == {recipe.name for recipe in RECIPES}
    assert sum(map(len, expected.values())) > 30
    lost = {
        name: {
            patch: found[name].gated.get(patch, "not gated") for patch in patches - found[name].live
        }
        for name, patches in expected.items()
        if patches - found[name].live
    }
    assert not lost


def test_the_table_is_current(found: dict[str, Outcome]) -> None:
    wanted = outcomes.page(found)
    assert outcomes.TABLE.read_text("utf-8") == wanted, "run python3 -m tests.maintain.recipes"
