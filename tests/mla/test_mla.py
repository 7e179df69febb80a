"""The mla patches on the released code: what the kernels read is the same bit by bit.

The project's own proof, ``sglang_perf_patches.proof.mla``, shows that, with inputs from hypothesis.
``check_*.py`` check that the work is gone, and what is left to stock. Both run in a process of each
release; a release stands for a group with identical code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_perf_patches import sets
from sglang_perf_patches.judge import downloads, source, verdict
from sglang_perf_patches.model.patching import Gated
from sglang_perf_patches.sets.mla import situations

Checked = Callable[[str, tuple[str, ...]], dict[str, Any]]
Shown = Callable[..., tuple[str, ...]]

RELEASES = (
    *("0.5.9", "0.5.10.post1", "0.5.11", "0.5.12.post1"),
    *("0.5.13.post1", "0.5.14", "0.5.15", "0.5.15.post1", "0.5.16"),
    *("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
PATCHES = tuple(patch.id for patch in sets.declared("mla").patches)


@cache
def applying(release: str) -> tuple[str, ...]:
    """The patches that apply to a release."""
    tree = source.Tree(source.find(downloads.tree(release)))
    mla = [found for found in sets.load() if found.name == "mla"]
    return tuple(
        found.patch.id for found in verdict.judge_each(mla, tree) if found.word == "applies"
    )


@pytest.mark.parametrize("release", RELEASES)
def test_kernels_read_the_same_to_the_bit(checked: Checked, shown: Shown, release: str) -> None:
    patches = shown("mla", release, applying(release), RELEASES)
    lines = {id: line for id, (line, _) in checked(release, patches).items()}
    assert all(line.get("compared", 0) > 0 for line in lines.values()), lines


@pytest.mark.parametrize("release", RELEASES)
def test_the_work_is_gone_and_exceptions_are_left_to_stock(
    checked: Checked, shown: Shown, release: str
) -> None:
    patches = shown("mla", release, applying(release), RELEASES)
    errors = [error for _, error in checked(release, patches).values() if error is not None]
    assert not errors, "\n\n".join(errors)


def test_every_body_that_a_patch_relies_on_is_proved() -> None:
    known = sets.declared("mla").known
    assert all(set(RELEASES) & set(where) for found in known.values() for where in found.values())


def test_every_patch_is_proved_on_some_release() -> None:
    assert set(PATCHES) == {id for release in RELEASES for id in applying(release)}


PLAIN = {
    "enable_two_batch_overlap": False,
    "speculative_algorithm": "EAGLE",
    "pp_size": 1,
    "enable_unified_memory": False,
    "dcp_size": 1,
}
SITUATIONS = [
    ("enable_two_batch_overlap", True, "two-batch overlap", {"VERIFY"}),
    ("speculative_algorithm", "NGRAM", "ngram", {"VERIFY"}),
    ("speculative_algorithm", "ngram", "ngram", {"VERIFY"}),
    ("pp_size", 2, "pipeline parallelism", {"VERIFY"}),
    ("enable_unified_memory", True, "unified memory", {"VERIFY", "DRAFT_TABLES"}),
    ("dcp_size", 2, "context parallelism", {"VERIFY", "DRAFT_TABLES"}),
]


@pytest.mark.parametrize(("option", "value", "said", "left"), SITUATIONS)
@pytest.mark.parametrize("reasons", ["VERIFY", "DRAFT_TABLES"])
def test_situations_that_are_left_to_stock_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    value: object,
    said: str,
    left: set[str],
    reasons: str,
) -> None:
    def served(arguments: SimpleNamespace) -> tuple[bool, list[str]]:
        gates: list[str] = []
        patching: Any = SimpleNamespace(gate=gates.append)
        monkeypatch.setattr(situations, "server_arguments", lambda: arguments)
        asked = situations.Served(patching, *getattr(situations, reasons))
        assert asked() == asked()
        return asked(), gates

    assert served(SimpleNamespace(**PLAIN)) == (True, [])
    answer, gates = served(SimpleNamespace(**{**PLAIN, option: value}))
    if reasons not in left:
        assert (answer, gates) == (True, []), "it has nothing to do with the patch's work"
        return
    assert not answer
    assert len(gates) == 1
    assert said in gates[0]


@pytest.mark.parametrize(
    ("quantization", "config", "answer"),
    [
        (None, None, False),
        ("fp8", {"weight_block_size": [128, 128]}, False),
        ("fp8", {"activation_scheme": "dynamic"}, True),
        ("fp8", None, True),
        ("w8a8_fp8", {}, True),
        ("fp8", SimpleNamespace(weight_block_size=[128, 128]), False),
    ],
)
def test_one_activation_scale_for_all_rows(
    quantization: str | None, config: object, answer: bool
) -> None:
    model = SimpleNamespace(
        quantization=quantization, hf_config=SimpleNamespace(quantization_config=config)
    )
    assert situations.one_scale(model) == answer


PLATFORMS = ("is_hip", "is_npu", "is_xpu", "is_musa")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_accelerators_that_are_left_to_stock(platform: str) -> None:
    def patching(yes: str) -> Any:
        asks = {name: (lambda name=name: name == yes) for name in PLATFORMS}
        return SimpleNamespace(module=lambda _: SimpleNamespace(**asks))

    situations.refuse_platforms(patching("none"))
    with pytest.raises(Gated):
        situations.refuse_platforms(patching(platform))
