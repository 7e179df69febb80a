"""Features of which MLX's backend reads no argument: they reach it as batches (`test_traffic`)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_perf_patches import downloads
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.setups import FEATURES
from sglang_perf_patches.sets.mlx.proven import UNREAD

_BACKEND = "sglang/srt/hardware_backend/mlx"
RELEASES = releases.between("0.5.11", "0.5.23")


@pytest.mark.parametrize("release", RELEASES)
def test_mlx_reads_no_argument_of_theirs(release: str) -> None:
    files = sorted((downloads.tree(release) / _BACKEND).rglob("*.py"))
    read = {name for file in files for name in names_read(file)}
    assert "disable_radix_cache" in read, "what it reads is found"
    arguments = {name for each in FEATURES.all if each.name in UNREAD for name in each.arguments()}
    assert len(arguments) >= len(UNREAD)
    assert not arguments & read


def names_read(file: Path) -> Iterator[str]:
    """Attributes that are read of anything but ``self``, and strings."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Attribute(value=ast.Name(id="self")):
                pass
            case ast.Attribute(attr=name, ctx=ast.Load()) | ast.Constant(value=str(name)):
                yield name
