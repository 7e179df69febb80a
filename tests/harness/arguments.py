"""The arguments of a server, as a release's source has them; nothing of it is imported."""

import ast
from functools import cache

from sglang_perf_patches import downloads


@cache
def arguments(release: str) -> frozenset[str]:
    folder = downloads.tree(release) / "sglang" / "srt"
    names: set[str] = set()
    for path in [folder / "server_args.py", *(folder / "arg_groups" / "fields").glob("*.py")]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and (
                node.name == "ServerArgs" or path.name != "server_args.py"
            ):
                names |= {
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                }
    return frozenset(names)
