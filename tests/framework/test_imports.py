"""Each part of the package imports only earlier parts, and no imports form a circle."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path

import pytest

import sglang_perf_patches
from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import by_id, room_of
from tests.__main__ import QUICK

ROOT = Path(sglang_perf_patches.__file__).parent

PARTS: dict[str, set[str]] = {
    "model": set(),
    "sets": {"model"},
    "compat": {"model"},
    "gpu": set(),
    "verified": {"model", "compat", "gpu"},
    "live": {"model", "compat", "sets", "gpu", "verified"},
    "faults": {"model"},
    "telemetry": {"model", "live", "faults"},
    "the package": {"model", "compat", "live", "telemetry", "sets"},
    "plugin": {"model", "live", "the package"},
    "bootstrap": {"plugin"},
    "supervised": {"telemetry"},
    "downloads": {"model"},
    "stubs": set(),
    "patch_page": {"model"},
    "worker": {"supervised"},
    "verify": {
        *("model", "compat", "live", "telemetry", "sets", "worker", "the package"),
        *("gpu", "verified"),
    },
    "bench_server": {"model", "compat", "telemetry", "sets", "supervised"},
    "cli": {
        *("model", "compat", "live", "telemetry", "faults", "sets"),
        *("verify", "bench_server", "bootstrap", "worker"),
        *("downloads", "stubs", "patch_page", "gpu", "verified"),
    },
    "__main__": {"cli"},
}
"""What each part may import, besides itself."""


OF_SERVERS = {
    *("model", "sets", "compat", "live", "telemetry", "faults"),
    *("the package", "plugin", "bootstrap", "gpu", "verified"),
}
"""The parts that a server imports: the whole of each, and nothing of another one."""

PATCHES = {room_of(id): patch for id, patch in by_id(sets.load()).items()}
"""The folder of each patch below ``sets`` → the patch."""


def modules() -> dict[str, Path]:
    """The files of the package by dotted name below it; "" is the package's own."""
    by_name = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        by_name[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return by_name


MODULES = modules()


def part(module: str) -> str:
    return module.partition(".")[0] or "the package"


def imported(module: str) -> Iterator[str]:
    """The modules of the package that one imports anywhere in it, for typing or later too."""
    path = MODULES[module]
    package = ".".join(path.relative_to(ROOT.parent).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        found: list[tuple[str, str]] = []  # the module and what is imported of it
        if isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            name = resolve_name("." * node.level + (node.module or ""), package)
            found = [(name, alias.name) for alias in node.names]
        for name, what in found:
            root, _, target = name.partition(".")
            inside = f"{target}.{what}".strip(".")
            if root != ROOT.name or inside == "__version__":  # which needs nothing of the package
                continue
            yield inside if inside in MODULES else target


GRAPH = {module: set(imported(module)) - {module} for module in MODULES}


def test_every_part_is_named() -> None:
    assert {part(module) for module in MODULES} == set(PARTS)


@pytest.mark.parametrize("module", sorted(MODULES), ids=lambda module: module or "the package")
def test_a_module_imports_only_parts_before_its_own(module: str) -> None:
    mine = part(module)
    for target in GRAPH[module]:
        assert part(target) in PARTS[mine] | {mine}, f"{module} imports {target}"
        if target.startswith("sets.") and module.startswith("sets."):
            same_set = target.split(".")[1] == module.split(".")[1]
            assert same_set or target == "sets.graphs", f"{module} imports {target}"


def test_a_patch_stands_in_a_folder_of_its_own() -> None:
    for name, patch in PATCHES.items():
        module = import_module(f"sglang_perf_patches.sets.{name}")
        assert module.PATCH.id == patch.id


def test_a_patch_has_checks_of_its_own_by_their_names() -> None:
    for name in PATCHES:
        path = Path(*name.split(".")).with_suffix(".py")
        files = [ROOT / "verify" / path, Path(__file__).parents[1] / "proof" / path]
        found = [each for each in files if each.is_file()]
        assert found, name
        for file in found:
            (checks,) = (
                node.value
                for node in ast.parse(file.read_text(encoding="utf-8")).body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CHECKS"
            )
            assert isinstance(checks, ast.Dict), name
            assert checks.keys, name


def test_a_patch_imports_its_own_folder_and_what_its_set_shares() -> None:
    for module in MODULES:
        own = next(
            (f"sets.{name}" for name in PATCHES if f"{module}.".startswith(f"sets.{name}.")), ""
        )
        for target in GRAPH[module] if own else ():
            theirs = target.removeprefix("sets.")
            other = any(f"{theirs}.".startswith(f"{name}.") for name in PATCHES)
            assert not other or f"{target}.".startswith(f"{own}."), f"{module} imports {target}"


JUDGING = """
import sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root not in sys.stdlib_module_names and root != "sglang_perf_patches":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuses())
from sglang_perf_patches import sets
print(*(patch.id for each in sets.load() for patch in each.patches))
"""


def test_declarations_import_the_standard_library_alone() -> None:
    """Nothing of sglang, torch, triton or mlx, so that a verdict costs no import of theirs."""
    done = subprocess.run([sys.executable, "-c", JUDGING], capture_output=True, text=True)
    assert done.stdout.split() == list(by_id(sets.load())), done.stderr


def test_no_file_is_long() -> None:
    declaring = {f"sets.{name}" for name in (*sets.NAMES, *PATCHES)}
    for module, path in MODULES.items():
        most = 200 if module in declaring else 450
        assert path.read_text(encoding="utf-8").count("\n") <= most, module


def test_no_circle() -> None:
    TopologicalSorter(GRAPH).prepare()  # raises a `CycleError`, which names the circle


def test_a_server_can_import_its_own_parts_and_nothing_else() -> None:
    """What only the command needs stands in the command's parts.

    A server begins with the plugin or with what `run` puts in front of it. The declarations and
    bodies, which `sets.load` and `live.registry` import by name, bring what they share.
    """
    waiting = {"plugin", "bootstrap.sitecustomize", *(f"sets.{name}" for name in sets.NAMES)}
    for name in PATCHES:
        waiting |= {f"sets.{name}", f"sets.{name}.body"} & set(MODULES)
    reached: set[str] = set()
    while waiting:
        module = waiting.pop()
        reached.add(module)
        above = module.rpartition(".")[0]
        waiting |= ({*GRAPH[module], above} & set(MODULES)) - reached
    assert reached == {module for module in MODULES if part(module) in OF_SERVERS}


def test_no_attribute_of_a_server_has_a_lock() -> None:
    """Up to Python 3.11 a `cached_property` has one: a fork could leave it held in the child."""
    for module, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        if part(module) not in OF_SERVERS or "cached_property" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                used = " ".join(map(ast.unparse, node.decorator_list))
                assert "cached_property" not in used, f"{module}: {node.name}"


def test_no_other_verb_loads_what_bench_server_needs() -> None:
    users = {name for name in MODULES if "bench_server" in map(part, GRAPH[name])}
    assert {name for name in users if part(name) == "cli"} == {"cli.verbs.benching_server"}


def test_the_parts_of_the_tests() -> None:
    """CONTRIBUTING names each, and pytest files stand in those that it says pytest collects."""
    tests = Path(__file__).parents[1]
    named: dict[str, bool] = {}
    text = (tests.parent / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("of `tests/`:")[2].lstrip("\n").partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        _, parts, what, _ = line.split("|")
        named |= dict.fromkeys(re.findall(r"`(\w+)`", parts), what.startswith(" pytest: "))
    files = [path.relative_to(tests) for path in tests.rglob("*.py") if path.parent != tests]
    assert {file.parts[0] for file in files} == set(named)
    collected = {file.parts[0] for file in files if file.name.startswith("test_")}
    assert collected == {part for part, is_pytest in named.items() if is_pytest}


def test_the_quick_tests_are_there() -> None:
    assert [name for name in QUICK if not (ROOT.parents[1] / name).is_file()] == []
