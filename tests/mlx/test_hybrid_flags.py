"""The flags that ``mlx.hybrid-cache``'s page names are what each release asks for."""

import re
from pathlib import Path

import pytest

from sglang_perf_patches.model import releases
from sglang_perf_patches.sets.mlx import hybrid_cache
from tests.releases.test_faults import MLX, asked

PAGE = Path(hybrid_cache.__file__).with_name("README.md")


@pytest.mark.sampled
@pytest.mark.parametrize("release", releases.between("0.5.17", "0.5.23"))
def test_the_page_names_a_flag_with_which_hybrids_start(release: str, tmp_path: Path) -> None:
    found = re.search(r"Without it, pass `(--[^`]+)`", PAGE.read_text())
    assert found is not None
    (answer,) = asked(release, tmp_path, [(f"next {found[1]}", MLX)])
    assert "arguments" in answer, answer
    assert answer["arguments"]["mamba_radix_cache_strategy"] == "'no_buffer'"
    assert answer["arguments"]["disable_overlap_schedule"] == "True"
