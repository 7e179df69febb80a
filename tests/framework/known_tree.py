"""Throwaway sets that every process knows, made from a tree as it was first written."""

from __future__ import annotations

from pathlib import Path

from throwaway import Throwaway

SETS = """
import os
import throwaway_patches as t
from pathlib import Path
from sglang_perf_patches.compat import source
gone = t.declare("two.gone", install="step", targets=("sglang.srt.gone:f",))
built = t.declare("two.built", install="step", targets=(f"{t.A}:helper",),
    upstream=("sgl-project/sglang#1",), built_in_since="1.0",
    markers=(t.Marker(definition=f"{t.A}:helper", contains="scale"),))
t.use(t.STEP, t.HELPER, t.BOTH, t.POLICY, gone, built,
    tree=source.Tree(source.find(os.environ["FIRST_TREE"])))
"""


def know(throwaway: Throwaway, tree: Path) -> None:
    """Let the sets of every process be known as `tree` has them."""
    text = f"import os\nos.environ['FIRST_TREE'] = {str(tree)!r}\n{SETS}"
    throwaway.put("sitecustomize.py", text)


def change(tree: Path, before: str = "return x + 1", after: str = "return 1 + x") -> None:
    path = tree / "srt" / "a.py"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
