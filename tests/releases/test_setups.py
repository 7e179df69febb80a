"""What a server has on, read from each release: from its source, and from servers it publishes."""

from pathlib import Path
from typing import Any

import pytest

import released
from arguments import arguments
from sglang_perf_patches import sets
from sglang_perf_patches.model import inert_args, releases, setups
from sglang_perf_patches.model.feature import NOTHING
from sglang_perf_patches.model.patch import by_id

SCRIPT = Path(__file__).with_name("read_setups.py")
PLATFORMS = ("hip", "npu", "xpu", "musa", "hpu", "cpu", "other-device")
NO_EXAMPLE = {*PLATFORMS, "other-speculation", "retracted-elsewhere"}
"""Features that can't be on here, or values that no release has yet."""
NOT_THE_DEFAULT_MODEL_S = {
    *("items", "diffusion", "dflash", "decode-offload", "late-slots", "no-kv-cache", "megakernel"),
    *("unified-memory", "page-major", "window-replay", "tracked-states", "other-tracking"),
    *("deterministic", "decode-radix-cache", "adaptive-drafts", "frozen-kv-mtp", "forced-graphs"),
    *("split-encoder", "other-drafter", "layered-drafts", "sparse-kv", "other-cache", "ngram"),
    "context-parallel",
}
"""What some releases refuse on a CPU, or with the small dense model that is published here."""
BRINGS = {
    "dp-attention": {"tensor-parallel", "data-parallel"},
    "expert-parallel": {"tensor-parallel"},
    "elastic-ranks": {"tensor-parallel", "expert-parallel"},
    "expert-all-to-all": {"tensor-parallel", "expert-parallel"},
    "pipeline": {"no-overlap"},
    "eagle": {"no-overlap"},
    "standalone": {"no-overlap"},
    "ngram": {"no-overlap", "draft-trees"},
    "frozen-kv-mtp": {"no-overlap"},
    "diffusion": {"no-overlap", "no-radix-cache"},
    "prefill-server": {"no-cuda-graphs"},
    "decode-server": {"no-radix-cache"},
    "decode-radix-cache": {"decode-server"},
    "decode-offload": {"decode-server", "no-radix-cache"},
    "late-slots": {"decode-server", "no-radix-cache"},
    "retracted-in-tensors": {"decode-server", "no-radix-cache"},
    "unified-memory": {"page-major"},
}
"""What a release may switch on together with a feature."""
MODELS: dict[str, set[str]] = {
    "plain": set(),
    "next": {"states", "delta_nets"},
    "falcon": {"states", "mamba2"},
    "ling": {"states", "lightning", "mla"},
    "windows": {"windows", "window_pool"},
    "gemma": {"windows"},
    "latent": {"mla"},
}
"""Model of `configurations` → what such a model has of the uses."""


@pytest.mark.parametrize("release", releases.KNOWN)
def test_somebody_has_classed_each_argument_of_a_server(release: str) -> None:
    names = arguments(release)
    assert len(names) > 300
    unknown = sorted(name for name in names if not setups.FEATURES.knows(name))
    assert not unknown, f"class them in {setups.__name__} or {inert_args.__name__}"


def test_no_argument_is_classed_that_no_release_has_or_twice() -> None:
    known = frozenset().union(*(arguments(release) for release in releases.KNOWN))
    features = [each for each in setups.FEATURES.all if each.name not in PLATFORMS]
    named = [name for each in features for name in each.arguments() if "." not in name]
    assert set(named) <= known
    classed = [name for names in inert_args.INERT_ARGS.values() for name in names.split()]
    assert set(classed) <= known
    assert len(set(classed)) == len(classed)
    assert not set(classed) & set(named)
    for part in inert_args.PREFIXES:
        assert any(name.startswith(part) for name in known)
        assert not any(name.startswith(part) for name in classed)


def test_a_value_that_a_feature_leaves_to_others_switches_one_of_them_on() -> None:
    """Or a patch that was proven with none of them would be on there."""
    on: dict[str, set[Any]] = {}
    for each in setups.FEATURES.all:
        for name, values in each.on.items():
            on.setdefault(name, set()).update(values)
    tested = 0
    for each in setups.FEATURES.all:
        for name in each.off.keys() & on.keys():
            assert set(each.off[name]) - set(setups._USUAL.get(name, NOTHING)) == on[name], each
            tested += 1
    assert tested == 5


@pytest.mark.sampled
@pytest.mark.parametrize("release", releases.KNOWN)
def test_what_a_release_resolves_is_read(release: str) -> None:
    answers = released.answers(released.tree(release), SCRIPT)
    by_name: dict[str, Any] = {line["name"]: line for line in answers}
    assert {line["seen"] for line in by_name.values() if "on" in line} == {1}
    plain = by_name.pop("plain")
    assert plain["on"] == {}
    # A small dense model; from its memory of the model the release answers.
    there = {"one-host", "one-token-pages", "polling", "prefills", "prefix-cache", "torch"}
    there |= {"several-requests", "single-drafts", "one-backend", "plain-rotary", "no-storage"}
    there |= {"captured-extends", "known-gdn-kernel", "stock-window-ratio", "drafts-of-one"}
    there |= {"no-chunks"}
    # Not every release has the arguments of these, or the same defaults.
    differs = {"known-host-cache", "known-gdn-kernel", "breakable-prefills", "own-processes"}
    assert set(plain["having"]) - differs == there - differs
    uses = {use.name for use in setups.FEATURES.uses}
    assert set(plain["lacking"]) - differs == uses - there - differs
    assert "multimodal" in by_name.pop("images")["on"]
    has = {name: by_name.pop(f"{name} model")["model"] for name in MODELS}
    assert {
        name: {use for use, is_so in model.items() if is_so} for name, model in has.items()
    } == {
        name: {f"has_{use}" for use in uses if (release, name) != ("0.5.9", "ling")}
        for name, uses in MODELS.items()
    }
    spelled = by_name.pop("--attn-dp-size")
    assert "absent" in spelled or "dp-attention" in spelled["on"], spelled
    assert ("absent" in spelled) == ("attn_dp_size" not in arguments(release))
    read = 0
    for name, line in by_name.items():
        if name in NO_EXAMPLE or "absent" in line:
            continue
        if "refused" in line:
            assert name in NOT_THE_DEFAULT_MODEL_S, line
            continue
        if name == "adaptive-drafts":
            continue  # off again without an algorithm that it is for
        assert {name} <= set(line["on"]) <= {name} | BRINGS.get(name, set()), line
        read += 1
    assert read > 30


def test_every_patch_declares_what_it_was_proven_with() -> None:
    for patch in by_id(sets.load()).values():
        assert patch.proven_with is not None, patch.id
        assert set(patch.proven_with) <= {each.name for each in setups.FEATURES.all}, patch.id
        assert all(patch.proven_with.values()), f"{patch.id}: a feature without its check"
        assert set(patch.only_with) <= {use.name for use in setups.FEATURES.uses}, patch.id
