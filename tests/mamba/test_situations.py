"""The patches leave to stock those platforms whose backends inherit what the patches change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_perf_patches import sets
from sglang_perf_patches.model.patching import Gated
from sglang_perf_patches.sets.mamba.situations import UTILS

ASKED = ("is_hip", "is_npu", "is_xpu", "is_musa", "is_cpu")
VARIANTS = [
    pytest.param(variant, id=f"{patch.id} {variant.releases[0]}")
    for patch in sets.declared("mamba").patches
    for variant in patch.variants
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("platform", ASKED)
def test_no_variant_goes_live_on_another_platform(variant: Any, platform: str) -> None:
    utils = SimpleNamespace(**{name: lambda name=name: name == platform for name in ASKED})
    asked: list[str] = []

    def module(name: str) -> Any:
        asked.append(name)
        return utils

    with pytest.raises(Gated, match="other kernels"):
        variant.load()(SimpleNamespace(module=module))
    assert asked == [UTILS]
    assert UTILS in variant.awaits
