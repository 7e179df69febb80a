"""``bench swa`` on one release, in the environment of the swa tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import released


@pytest.mark.whole_matrix
def test_bench_compares_stock_and_patched(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    command = ("-m", "sglang_perf_patches", "bench", "swa", "--quick", "--json", "--html", page)
    result: dict[str, Any] = json.loads(released.run(released.tree("0.5.23"), *command))
    assert result["sglang"].startswith("0.5.23 at ")
    assert result["ended"] == {"swa": "equal"}
    admission, idle, decoding = (
        [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
        for table in result["tables"]
    )
    unpaged = {row["prompt"]: row for row in admission if row["page"] == 1}
    assert [unpaged[n]["admitted, stock"] for n in sorted(unpaged)] == [7, 1, 0]
    assert [unpaged[n]["admitted, patched"] for n in sorted(unpaged)] == [64, 31, 7]
    for row in admission:
        assert row["admitted, patched"] <= row["bound"]
    # Upstream has the rule for pages since 0.5.18, so those loads are not played here.
    assert {row["page"] for row in admission} == {1}
    assert [(row["answered, stock"], row["answered, patched"]) for row in idle] == [(0, 3)] * 2
    by_patches = {row["patches"]: row for row in decoding}
    assert by_patches["patched"]["finished"] == 64
    assert by_patches["with policies"]["retractions"] < by_patches["patched"]["retractions"]
    text = page.read_text(encoding="utf-8")
    assert all(str(table["title"]) in text for table in result["tables"])
    assert "http" not in text
