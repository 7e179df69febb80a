"""swa.window-pool on the releases that it is declared for: real schedulers with small models."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import released
import tiers
from sglang_perf_patches import patch_page, sets
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.model.setups import FEATURES
from sglang_perf_patches.sets.swa import window_pool as body

pytestmark = pytest.mark.newest  # one body serves all, and a release takes two minutes

PATCH = by_id(sets.load())["swa.window-pool"]
RELEASES = tuple(release for variant in PATCH.variants for release in variant.releases)
RANK = Path(__file__).with_name("window_rank.py")
SAYS = {
    "images": "takes images",
    "no pool": "--disable-hybrid-swa-memory",
    "backend": "--attention-backend",
    "two backends": "prefill and decode have different attention backends",
    "windows alone": "not both kinds of layers",
    "both directions": "prefills are not chunked",  # stock resolves that for such a model
    "another model": "the model is not Gemma 2 or 3",
}
"""What is said where a server is left to stock."""


@pytest.fixture(scope="module", params=RELEASES)
def answers(request: pytest.FixtureRequest, values: Any) -> dict[str, Any]:
    whole = tiers.is_whole(request.config)
    names = ("left_to_stock", "both_together", "refuses_images_in_prompts", "beams")
    jobs: dict[str, dict[str, Any]] = {name: {} for name in names}
    jobs["pressed_hard"] = {"episodes": 30 if whole else 2}
    return values(request.param, {**jobs, "broken": {}} if whole else jobs, "window_checks")


def test_a_server_with_a_draft_model_is_left_to_stock() -> None:
    """So nothing tells a draft's configuration from the model's."""
    drafts = {each.name for each in FEATURES.all if "speculative_algorithm" in each.arguments()}
    assert {"eagle", "other-speculation"} <= drafts
    assert not {*drafts, "other-drafter"} & (PATCH.proven_with or {}).keys()


def test_images_and_both_directions_are_refused_whatever_the_arguments_say() -> None:
    context = SimpleNamespace(
        attention_backends=lambda: ("fa3", "fa3"),
        get_server_args=lambda: SimpleNamespace(disable_hybrid_swa_memory=False),
    )
    text = {"sliding_window": 32, "use_bidirectional_attention": False}
    served = {"is_multimodal": False, "is_generation": True}

    def reason(about: dict[str, Any], of_text: dict[str, Any]) -> str | None:
        model = SimpleNamespace(
            hf_config=SimpleNamespace(architectures=["Gemma3ForCausalLM"]),
            hf_text_config=SimpleNamespace(**{**text, **of_text}),
            **{**served, **about},
        )
        return body.unserved(model, [1, 0], context)

    assert reason({}, {}) is None
    assert "images" in str(reason({"is_multimodal": True}, {}))
    assert "both directions" in str(reason({"is_generation": False}, {}))
    assert "both directions" in str(reason({}, {"use_bidirectional_attention": True}))
    assert "not both kinds" in str(reason({}, {"sliding_window": None}))


def test_what_is_not_proven_is_stocks_and_says_why(answers: dict[str, Any]) -> None:
    reasons = answers["left_to_stock"]
    assert reasons.keys() == SAYS.keys()
    for name, reason in reasons.items():
        assert SAYS[name] in reason, (name, reason)


def test_with_the_pools_ratio_its_pools_are_made(answers: dict[str, Any]) -> None:
    stock, alone, both = answers["both_together"]
    assert (stock, alone) == (0, 3276)
    assert 0 < both < alone


def test_beam_search_is_refused_as_the_page_and_the_log_say(answers: dict[str, Any]) -> None:
    (stock,), (patched,), lines = answers["beams"]
    assert stock == {"type": "length", "length": 4}
    assert patched["type"] == "abort"
    assert patched["status_code"] == 400
    assert "SWA/mamba" in patched["message"]
    (line,) = lines
    assert line.startswith("swa.window-pool: this server answers 400 to requests with beam_width")
    assert "`beam_width`" in patch_page.path(PATCH.id).read_text(encoding="utf-8")


def test_small_pools_serve_what_stock_serves(answers: dict[str, Any]) -> None:
    told = answers["pressed_hard"]
    assert told["served"] > 0
    assert told["hits"] > 0, "no prefix was found again"


@pytest.mark.whole_matrix
def test_a_broken_patch_is_noticed(answers: dict[str, Any]) -> None:
    assert len(answers["broken"]) == 4
    assert all(answers["broken"].values()), answers["broken"]


@pytest.mark.whole_matrix
@pytest.mark.parametrize("release", RELEASES[-1:])
def test_two_ranks_compute_what_stock_does(release: str) -> None:
    """Both with half of the KV heads, over gloo: batches, tokens and logits of each."""
    told = {each: released.ranks(release, RANK, [each, each]) for each in ("none", PATCH.id)}
    for stock, patched in zip(*told.values(), strict=True):
        assert stock.pop("patch") == ["off", "not chosen"]
        assert patched.pop("patch") == ["live", ""]
        assert stock.pop("pools")[1] is None
        assert patched.pop("pools")[1] > 0
        assert patched == stock
