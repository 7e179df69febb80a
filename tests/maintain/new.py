"""Makes the room of a new patch: ``python3 -m tests.maintain.new SET.NAME``.

It writes the declaration, the body, the checks and the page, and names the room in its set. What a
person must write is marked by `pages.TO_WRITE`, and a declaration without variants applies nowhere.
The tests fail until that is done.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.model.retired import RETIRED

from . import ROOT, pages

_BODY = '''"""``{id}``: {to_write}."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....model.patching import Patching


def install(patching: Patching) -> None:
    """{to_write}."""
    raise NotImplementedError("{id} is not written yet")
'''

_PROOF = '''"""{to_write}."""

from __future__ import annotations

from sglang_perf_patches.verify import Check

PATCH = "{id}"

CHECKS: dict[str, Check] = {{}}
"""{to_write}."""
'''

_DECLARATION = '''"""``{id}``."""

from ....model.patch import Patch

PATCH = Patch(
    id="{id}",
    summary="{to_write}",
)
'''


def make(patch_id: str, root: Path) -> list[Path]:
    """Write the files of a new patch into a checkout; return those that were written or changed.

    Raises:
        ValueError: the name is not one of a patch, is taken, or its set is unknown.
    """
    set_name, _, name = patch_id.partition(".")
    if set_name not in sets.NAMES:
        raise ValueError(f"unknown set {set_name!r}: the sets are {', '.join(sets.NAMES)}")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ValueError(f"{name!r} is no name of a patch: small letters, digits and hyphens")
    if patch_id in by_id(sets.load()) or patch_id in RETIRED:
        raise ValueError(f"{patch_id} is taken")
    page = root / pages.file(patch_id)
    room, of_set = page.parent, page.parents[1]
    if room.exists() or room.with_suffix(".py").exists():
        raise ValueError(f"{room.name} is taken in {set_name}")
    texts = {
        "__init__.py": _DECLARATION.format(id=patch_id, to_write=pages.TO_WRITE),
        "body.py": _BODY.format(id=patch_id, to_write=pages.TO_WRITE),
        page.name: pages.skeleton(patch_id),
    }
    named = of_set / "__init__.py"
    with_it = _named(named.read_text(encoding="utf-8"), room.name)
    proof = root / f"tests/proof/{set_name}/{room.name}.py"
    proof.parent.mkdir(parents=True, exist_ok=True)
    proof.write_text(_PROOF.format(id=patch_id, to_write=pages.TO_WRITE), encoding="utf-8")
    room.mkdir()
    for file, text in texts.items():
        (room / file).write_text(text, encoding="utf-8")
    named.write_text(with_it, encoding="utf-8")
    return [*(room / file for file in texts), proof, named]


def _named(text: str, room: str) -> str:
    """A set's module that names one more room, its patch last in ``PATCHES``."""
    constant = room.upper()
    lines = text.splitlines(keepends=True)
    imports = [
        (node.end_lineno or 0, node.module or "")
        for node in ast.parse(text).body
        if isinstance(node, ast.ImportFrom)
    ]
    line = max(end for end, module in imports if module < room or module.startswith("model"))
    lines.insert(line, f"from .{room} import PATCH as {constant}\n")
    for node in ast.parse("".join(lines)).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "PATCHES":
            assert node.end_lineno is not None
            lines.insert(node.end_lineno - 1, f"    {constant},\n")
            return "".join(lines)
    raise ValueError("the set declares no PATCHES")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 fine, 2 the name can't be taken."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.maintain.new")
    parser.add_argument("patch", metavar="SET.NAME")
    options = parser.parse_args(arguments)
    try:
        written = make(options.patch, ROOT)
    except ValueError as error:
        print(f"new: {error}", file=sys.stderr)
        return 2
    for path in written:
        print(path.relative_to(ROOT))
    print("Next: the steps of .github/CONTRIBUTING.md, Add a patch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
