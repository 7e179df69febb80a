"""Each constant that a patch's definitions read, and each class header around them, counts.

So do the enumerations and settings that they name, and the constants of their classes' bases.

Which these are is found here by other means than `compat` has: by what the compiled code loads, and
by the lines of the file.
"""

import dis
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from sglang_perf_patches import downloads, sets
from sglang_perf_patches.compat import source
from sglang_perf_patches.compat.definition import Definition, lines_of
from sglang_perf_patches.compat.parsing import Module
from sglang_perf_patches.compat.verdict import judge, judge_each
from sglang_perf_patches.model.patch import Patch, Variant, module_of, qualname_of, room_of

RELEASES = ("0.5.9", "0.5.17", "0.5.23")
BUILD = "git-5b9fbc51dcff"

_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_NAME"}

HOW = ("around", "enumeration", "predicate", "setting", "base")
_MODE = "sglang.srt.model_executor.forward_batch_info"
_SETTINGS = "sglang.srt.environ"

_Change = tuple[str, int, str, str]
"""A module, the index of a line in its file, what that line is to be, and one of `HOW`."""


@pytest.mark.whole_matrix
@pytest.mark.parametrize("release", RELEASES)
def test_a_changed_constant_or_header_refuses(release: str, tmp_path: Path) -> None:
    whole = source.Tree(source.find(downloads.tree(release)), table=dict)
    applying = [each for each in judge_each(sets.load(), whole) if each.word == "applies"]
    concerned: dict[_Change, set[str]] = {}
    for verdict in applying:
        for definition in (verdict.definitions or {}).values():
            for change in changes(whole, definition):
                concerned.setdefault(change, set()).add(verdict.patch.id)
    assert len(concerned) > 20
    assert {id for ids in concerned.values() for id in ids} == {each.patch.id for each in applying}
    # No method of 0.5.9 that counts reads a constant of a base.
    assert {how for _, _, _, how in concerned} == set(HOW[: 4 if release == "0.5.9" else 5])

    root = copy_of(whole, tmp_path)
    known = {patch.id: (patch, each.known) for each in sets.load() for patch in each.patches}
    for change in sorted(concerned):
        module, index, text, _ = change
        path = root / whole_path(whole, module).relative_to(whole.root)
        kept = path.read_bytes()
        lines = lines_of(path)
        lines[index] = text
        path.write_text("\n".join(lines))
        compile(path.read_bytes(), path, "exec")
        tree = source.Tree(root)
        tree._modules = {name: each for name, each in whole._modules.items() if name != module}
        words = {id: judge(*known[id], tree).word for id in concerned[change]}
        path.write_bytes(kept)
        assert words == dict.fromkeys(words, "refused"), change


def test_a_changed_release_is_no_source_build(tmp_path: Path) -> None:
    """Only the definitions' own source of a build is known, and a release may have the same."""
    whole = source.Tree(source.find(downloads.tree("0.5.11")), table=dict)
    cache = "sglang.srt.hardware_backend.mlx.kv_cache.contiguous_cache:ContiguousKVCache"
    targets = (f"{cache}._grow", f"{cache}.write_token")
    patch = Patch(
        id="mlx.both",
        summary="of a release and of a build with the same definitions",
        variants=tuple(
            Variant(releases=(release,), install="nowhere:install", targets=targets)
            for release in ("0.5.11", BUILD)
        ),
    )
    known: dict[str, dict[str, tuple[str, ...]]] = {}
    for target in targets:
        definition = whole.definition(target)
        assert definition is not None
        assert definition.own != definition.digest
        known[target] = {definition.digest: ("0.5.11",), definition.own: (BUILD,)}
    assert judge(patch, known, whole).release == "0.5.11"
    root = copy_of(whole, tmp_path)
    for path in (whole.root / "_version.py", whole.root / "version.py"):
        if path.is_file():
            shutil.copy(path, root)
    path = next(root.rglob("contiguous_cache.py"))
    text = path.read_text(encoding="utf-8")
    for changed in (
        text.replace("class ContiguousKVCache:", "class ContiguousKVCache(Other):"),
        f"{text}\nContiguousKVCache._grow = None\n",
    ):
        assert changed != text
        path.write_text(changed, encoding="utf-8")
        assert judge(patch, known, source.Tree(root)).word == "refused"


@pytest.mark.newest
@pytest.mark.parametrize("release", RELEASES)
def test_settings_and_modes_that_our_own_code_reads_count(release: str) -> None:
    tree = source.Tree(source.find(downloads.tree(release)))
    found = 0
    for verdict in judge_each(sets.load(), tree):
        if verdict.word != "applies":
            continue
        text = "\n".join(path.read_text("utf-8") for path in files_of(verdict.patch))
        named = {f"{_SETTINGS}:Envs.{name}" for name in re.findall(r"\benvs\.([A-Z]\w*)", text)}
        named |= {f"{_MODE}:ForwardMode"} if "forward_mode" in text else set()
        there = {reference for reference in named if tree.definition(reference)}
        counting = set(verdict.definitions or ())
        for definition in (verdict.definitions or {}).values():
            counting |= {*definition.imports, *definition.classes}
        assert there <= counting, verdict.patch.id
        found += len(there)
    assert found > 1


def files_of(patch: Patch) -> set[Path]:
    """What runs of a patch: the modules of its folder, and what those import of its set's."""
    folder = Path(sets.__file__).parent.joinpath(*room_of(patch.id).split("."))
    waiting = [*folder.glob("*.py")]
    files: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in files:
            continue
        files.add(path)
        for dots, module, names in re.findall(
            r"^ *from (\.+)([\w.]*) import ([\w, ]+)", path.read_text("utf-8"), re.MULTILINE
        ):
            base = path.parents[len(dots) - 1].joinpath(*module.split(".") if module else ())
            for each in (base, *(base / name for name in names.split(", "))):
                shared = each.with_suffix(".py")
                if shared.is_file() and folder.parent in shared.parents:
                    waiting.append(shared)
    return files


def copy_of(whole: source.Tree, folder: Path) -> Path:
    """What verdicts read of a tree, to be changed and restored."""
    root = folder / "sglang"
    for module in (*whole._modules, "sglang"):
        path = whole_path(whole, module)
        target = root / path.relative_to(whole.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (root / "srt").mkdir(exist_ok=True)
    return root


def parse(tree: source.Tree, module: str) -> None:
    """Make a module one of those that were parsed."""
    if module not in tree._modules:
        tree._modules[module] = Module(whole_path(tree, module), module)


def whole_path(tree: source.Tree, module: str) -> Path:
    path = tree.path(module)
    assert path
    return path


def changes(tree: source.Tree, definition: Definition) -> Iterator[_Change]:
    """One change to each class header around a definition and to each constant that it reads."""
    module = module_of(definition.reference)
    lines = lines_of(definition.path)
    *classes, last = qualname_of(definition.reference).split(".")
    for name in [*classes, *([last] if definition.is_class else [])]:
        for index, line in enumerate(lines):
            if re.match(rf"class {name}\b", line):
                text = re.sub(r"^class \w+", rf"\g<0>(Other{'' if '(' in line else ')'}", line)
                yield module, index, re.sub(r"(\(Other)\(", r"\1, ", text), "around"
                yield from fields(module, lines, index, names_read(definition, _ATTRIBUTES))
    read = names_read(definition, _GLOBALS)
    for index, line in enumerate(lines):
        match = re.match(r"(\w+)(\s*:[^=]+)?\s*=(?!=)", line)
        if match and match[1] in read and match[1] != last:
            yield module, index, f"{match[0]} None if None else{line[match.end() :]}", "around"
    for whence, name in imported(lines):
        path = tree.path(whence) if name in read else None
        for index, line in enumerate(lines_of(path) if path else ()):
            if re.match(rf"{name}(\s*:[^=]+)?\s*=(?!=)", line):
                parse(tree, whence)
                yield whence, index, re.sub("=", "= None if None else", line, count=1), "around"
    yield from changes_of_enumerations(tree, definition, lines)
    if definition.is_function and classes:
        yield from changes_of_bases(tree, definition, module, classes[-1])


def changes_of_enumerations(
    tree: source.Tree, definition: Definition, lines: list[str]
) -> Iterator[_Change]:
    """A change to a member of each enumeration, to a predicate, and to the defaults of settings."""
    for name, member in sorted(set(re.findall(r"\b(_*[A-Z]\w*)\.([A-Z]\w*)\b", definition.text))):
        for whence, there, index in class_of(tree, module_of(definition.reference), name):
            if re.search(r"\(.*(Enum|Flag)\b", there[index]):
                for change in fields(whence, there, index, {member}):
                    yield *change[:3], "enumeration"
    if "forward_mode." in definition.text and tree.path(_MODE):
        there = lines_of(whole_path(tree, _MODE))
        first = there.index("class ForwardMode(IntEnum):")
        index = next(i for i in range(first, len(there)) if "return self ==" in there[i])
        yield _MODE, index, there[index].replace("self ==", "self !="), "predicate"
    if f"from {_SETTINGS} import envs" in lines:
        there = lines_of(whole_path(tree, _SETTINGS))
        parse(tree, _SETTINGS)
        for name in set(re.findall(r"\benvs\.([A-Z]\w*)", definition.text)):
            index = next(i for i, line in enumerate(there) if line.startswith(f"    {name} = "))
            yield _SETTINGS, index, there[index].replace("=", "= None or", 1), "setting"


def changes_of_bases(
    tree: source.Tree, definition: Definition, module: str, name: str
) -> Iterator[_Change]:
    """A change to each constant of a class's bases that a method reads of its own object."""
    waiting = list(class_of(tree, module, name))
    read = set(re.findall(r"\bself\.(\w+)\b(?!: [^=]+ =|, self|\s*=[^=])", definition.text))
    while waiting:
        whence, lines, index = waiting.pop()
        body = "\n".join(lines[index + 1 :]).partition("\nclass ")[0]
        if whence != module or not re.match(rf"class {name}\b", lines[index]):
            for change in fields(whence, lines, index, read):
                yield *change[:3], "base"
        read -= set(re.findall(r"^    (?:async )?(?:def )?(\w+)", body, re.MULTILINE))
        bases = re.match(r"class \w+\(([\w, ]+)\):", lines[index])
        for base in bases[1].split(", ") if bases else ():
            waiting += class_of(tree, whence, base)


def class_of(tree: source.Tree, module: str, name: str) -> Iterator[tuple[str, list[str], int]]:
    """Where a class is that a file calls so: its module, the lines there, and the index of its."""
    lines = lines_of(whole_path(tree, module))
    places = [whence for whence, imported_name in imported(lines, r"\w+") if imported_name == name]
    for whence in [module, *places]:
        path = tree.path(whence)
        there = lines_of(path) if path else []
        for index, line in enumerate(there):
            if re.match(rf"class {name}\b", line) and path:
                parse(tree, whence)
                yield whence, there, index
                return


def fields(module: str, lines: list[str], first: int, read: set[str]) -> Iterator[_Change]:
    """A change to each value that the body of the class in a line gives to a name that is read."""
    for index in range(first + 1, len(lines)):
        if re.match(r"[^\s#)]", lines[index]):
            return
        match = re.match(r"    (\w+)(\s*:[^=]+)?\s*=(?!=)", lines[index])
        if match and match[1] in read:
            text = f"{match[0]} None if None else{lines[index][match.end() :]}"
            yield module, index, text, "around"


def names_read(definition: Definition, how: set[str]) -> set[str]:
    try:
        waiting = [compile(definition.text, "m.py", "exec")]
    except SyntaxError:  # pieces of it stand in another block
        return set()
    names: set[str] = set()
    while waiting:
        code = waiting.pop()
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
        names |= {str(each.argval) for each in dis.get_instructions(code) if each.opname in how}
    return names


def imported(lines: list[str], names: str = r"_?[A-Z][A-Z0-9_]+") -> Iterator[tuple[str, str]]:
    """Constants, or other names, that a file imports at its beginning, and from where."""
    text = "\n".join(lines)
    for whence, group, single in re.findall(
        r"^from (sglang[\w.]+) import (?:\(([^)]*)\)|(.*))$", text, re.MULTILINE
    ):
        for name in re.findall(rf"\b{names}\b", group or single):
            yield whence, name
