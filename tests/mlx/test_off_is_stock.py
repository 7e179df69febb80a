"""With the plugin installed and off, the modules that the set patches are stock's own."""

import re
from collections.abc import Iterable
from typing import Any

import pytest

from linux_mlx.environments import install_checkout, sglang_environment
from tests.proof import OF_RUNNER

pytestmark = pytest.mark.newest

RELEASES = ("0.5.11", "0.5.17", "0.5.23")
CORE = "sglang.srt.hardware_backend.mlx.kv_cache.attention_wrapper:mx"


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """A release in whose environment this checkout is installed."""
    install_checkout(sglang_environment(request.param))
    name: str = request.param
    return name


def test_none_leaves_every_attribute_as_it_is_without_the_plugin(found: Any, release: str) -> None:
    without = found(release, "off")
    off = found(release, "off", LOAD_PLUGINS="1", SGLANG_PERF_PATCHES="none")
    assert "sglang-perf-patches" in off["plugins"]
    assert len(off["attributes"]) > 50
    assert off["attributes"] == without["attributes"]


def test_deactivate_puts_the_identical_objects_back(found: Any, release: str) -> None:
    off = found(release, "off", LOAD_PLUGINS="1", SGLANG_PERF_PATCHES="none")
    assert "mlx.kv-arena" in off["live"]
    assert CORE in off["changed"]
    assert off["differs after"] == []
    assert off["attributes after"] == off["attributes"]


@pytest.mark.whole_matrix
@pytest.mark.parametrize("release", ["0.5.23"], indirect=True)
def test_on_the_attributes_differ(found: Any, release: str) -> None:
    """Otherwise the two tests above could not fail."""
    on = found(release, "off", LOAD_PLUGINS="1", SGLANG_PERF_PATCHES=OF_RUNNER)
    off = found(release, "off", LOAD_PLUGINS="1", SGLANG_PERF_PATCHES="none")
    differing = {k for k in on["attributes"] if on["attributes"][k] != off["attributes"].get(k)}
    assert CORE in differing
    assert _names(differing) == _names(off["changed"])


def _names(held: Iterable[str]) -> set[str]:
    """Names without the number that a private global has in one process."""
    return {re.sub(r"(:_sglang_perf_patches_\w+)_[0-9a-f]+$", r"\1", name) for name in held}
