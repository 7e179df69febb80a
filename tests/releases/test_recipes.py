"""No command that people run loses a patch: the table of `recipes`, against the newest release."""

import pytest

from sglang_perf_patches.cli import verbs
from sglang_perf_patches.cli.ask import gpus
from tests.releases.recipes import oracle, outcomes
from tests.releases.recipes.models import MODELS
from tests.releases.recipes.outcomes import RECIPES, Outcome

pytestmark = pytest.mark.whole_matrix  # it resolves all commands, in two minutes


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return outcomes.ask(tmp_path_factory.mktemp("models"))


def test_no_recipe_loses_a_patch(found: dict[str, Outcome]) -> None:
    expected = outcomes.expected()
    assert set(expected) == {recipe.name for recipe in RECIPES}
    assert sum(map(len, expected.values())) > 30
    lost = {
        name: {id: found[name].gated.get(id, "not gated") for id in patches - found[name].live}
        for name, patches in expected.items()
    }
    assert not any(lost.values()), lost


def test_each_line_is_what_the_arguments_and_the_bodies_say(found: dict[str, Outcome]) -> None:
    """`oracle` reads no declaration of features and uses."""
    assert len(RECIPES) > 50
    tested = {
        one.patch.id: one.patch.proven_in(one.variant).proven_with or {}
        for one in verbs.judged(verbs.tree_at(version=outcomes.RELEASE))
        if one.word == "applies"
    }
    for recipe in RECIPES:
        outcome = found[recipe.name]
        architecture = MODELS[recipe.model]["architectures"][0]
        server = oracle.Server(architecture, recipe.gpu, outcome.arguments)
        assert oracle.features(server) == outcome.on, recipe.name
        assert set(outcome.states) == set(oracle.ACTS), recipe.name
        expected = {patch: oracle.state(patch, server, tested[patch]) for patch in oracle.ACTS}
        assert outcome.states == expected, recipe.name


def test_the_delta_net_graph_acts_in_each_recipe_of_such_a_model(found: dict[str, Outcome]) -> None:
    """A record of ``verify`` lifts the gate of every other GPU, and there is no other gate."""
    graph = "mamba.gdn-prefill-graph"
    acts = [each for each in RECIPES if found[each.name].states[graph] != "not needed"]
    assert len(acts) == 14
    gated = {each.name: found[each.name].gated.get(graph) for each in acts}
    kinds = {each.name: gpus.KINDS[each.gpu].capability for each in acts}
    others = {name: ("other-gpu",) for name, kind in kinds.items() if kind != (9, 0)}
    assert {name: why for name, why in gated.items() if why} == others
    assert len(others) == 4
    assert all(graph in found[each.name].with_records for each in acts)


def test_the_table_is_current(found: dict[str, Outcome]) -> None:
    wanted = outcomes.page(found)
    assert outcomes.TABLE.read_text("utf-8") == wanted, "run python3 -m tests.maintain.recipes"
