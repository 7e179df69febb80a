"""Any selection and any mangled tree gives a one-sentence answer that is never wrong."""

import ast
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiers
from sglang_perf_patches import downloads, sets
from sglang_perf_patches.cli import main
from sglang_perf_patches.compat import source, verdict
from sglang_perf_patches.model.patch import Patch, PatchSet, Variant, by_id, module_of, qualname_of
from sglang_perf_patches.model.selection import Selection, SelectionError, parse
from sglang_perf_patches.model.switch import is_off

PATCHES = by_id(sets.load())
WORDS = ["all", "none", "", " ", *PATCHES, *sets.NAMES, "mlx.", "swa.tail", "ALL", "mla.nonsense"]

items = st.builds(
    lambda minus, space, word: f"{space}{minus}{space}{word}{space}",
    st.sampled_from(["", "", "-", "--"]),
    st.sampled_from(["", "", " ", "\t", "\n"]),
    st.sampled_from(WORDS) | st.text(max_size=8),
)
selections = st.text() | st.lists(items, max_size=6).map(",".join)


def chosen(text: str) -> Selection | None:
    """What a text chooses; None if it is refused, with one sentence."""
    try:
        return parse(text, PATCHES)
    except SelectionError as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    return None


@given(selections)
def test_a_selection_is_understood_or_refused(text: str) -> None:
    selection = chosen(text)
    if selection is None:
        return
    assert list(selection.ids) == [id for id in PATCHES if id in selection.ids]
    assert selection.in_full <= selection.by_name <= set(selection.ids)
    for id in selection.ids:
        assert set(PATCHES[id].requires) <= set(selection.ids)
        if not PATCHES[id].is_default:
            assert id in selection.by_name
    assert not (is_off(text) and selection.ids)
    if selection.ids:
        named = chosen(",".join(selection.ids))
        assert (named.ids, named.in_full) == (selection.ids, set(selection.ids))


@given(selections, st.sampled_from([*PATCHES, *sets.NAMES]))
def test_what_is_taken_out_is_out_and_nothing_comes_in(text: str, name: str) -> None:
    before, after = chosen(text), chosen(f"{text},-{name}")
    if before is None or is_off(text):
        assert after is None
    elif after is None:  # something named in full needs it
        assert any(name in {id, PATCHES[id].set} for id in before.by_name - before.in_full)
    else:
        assert set(after.ids) <= set(before.ids)
        assert name not in {word for id in after.ids for word in (id, PATCHES[id].set)}
        assert chosen(f"{text},-{name},-{name}") == Selection(
            f"{text},-{name},-{name}", after.ids, after.by_name, after.in_full
        )


@given(st.lists(items, min_size=1, max_size=6), st.randoms())
def test_order_spaces_and_repetition_do_not_matter(words: list[str], random: object) -> None:
    once = chosen(",".join(words))
    mixed = [f" {word.strip()} " for word in [*words, *words]]
    random.shuffle(mixed)  # type: ignore[attr-defined]
    again = chosen(",".join(mixed))
    if is_off(",".join(words)):
        return  # alone it means none, and twice it is an error
    assert (once is None) == (again is None)
    assert once is None or again is None or once.ids == again.ids


MODULE = '''
"""A module."""
import functools
from os import path as where

limit = 3


@functools.lru_cache
def cached(x):
    return x


def plain(x, *, scale=1):
    """One line, and

    another.
    """
    return x * scale  # a comment


if where:
    def either(x):
        return x
else:
    def either(x):
        return -x


class Holder:
    size = 1

    def method(self):
        return self.size

    @property
    def both(self):
        return self.size

    @both.setter
    def both(self, value):
        self.size = value
'''

NAMES = ("limit", "cached", "plain", "either", "Holder.method", "Holder.both", "Holder.size")
READERS = {"Holder.size": {"Holder.method", "Holder.both"}}
"""What may mean something else where a name does."""
STATEMENTS = (
    "{0} = None",
    "{0}: int = 3",
    "{0} += 1",
    "{0}, other = 1, 2",
    "other = [{0}, *rest] = 1, 2",
    "del {0}",
    "import os as {0}",
    "import {0}.x",
    "from os import path as {0}",
    "from os import {0}",
    "def {0}(): pass",
    "async def {0}(): pass",
    "class {0}: pass",
    "for {0} in (): pass",
    "for other in ():\n    {0} = 1",
    "while other:\n    {0} = 1",
    "with other as {0}: pass",
    "with other:\n    {0} = 1",
    "try: other\nexcept E as {0}: pass",
    "try: other\nfinally:\n    {0} = 1",
    "if other: pass\nelif more:\n    {0} = 1",
    "if ({0} := 1): pass",
    "match other:\n    case 1:\n        {0} = 1",
)


def write(folder: Path, text: str | bytes) -> source.Tree:
    (folder / "srt").mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").touch()
    path = folder / "srt" / "m.py"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return source.Tree(folder)


@functools.cache
def throwaway_set() -> PatchSet:
    """One patch for each name, which is all it changes."""
    patches, known = [], {}
    with tempfile.TemporaryDirectory() as folder:
        tree = write(Path(folder), MODULE)
        for name in NAMES:
            definition = tree.definition(f"sglang.srt.m:{name}")
            known[definition.reference] = {definition.digest: ("1.0",)}
            variant = Variant(releases=("1.0",), install="x:y", targets=(definition.reference,))
            patches.append(Patch(id=f"one.{name}", summary="", variants=(variant,)))
    return PatchSet("one", "", tuple(patches), known)


def applying(text: str | bytes) -> set[str]:
    """The names whose patches apply to a module of this text."""
    with tempfile.TemporaryDirectory() as folder:
        verdicts = verdict.judge_each([throwaway_set()], write(Path(folder), text))
    assert all(judged.reason for judged in verdicts)
    return {judged.patch.id.partition(".")[2] for judged in verdicts if judged.word == "applies"}


def test_each_name_applies_as_it_is() -> None:
    assert applying(MODULE) == set(NAMES)


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("at", ["end", "inside"])
def test_whatever_binds_a_name_again_is_seen(statement: str, at: str) -> None:
    for name in NAMES:
        *classes, last = name.split(".")
        lines = statement.format(last).splitlines()
        if at == "inside":
            lines = ["if where:", *(f"    {line}" for line in lines)]
        text = "\n".join("    " + line if classes else line for line in lines)
        mangled = f"{MODULE}\n{text}\n"
        compile(mangled, "m.py", "exec")
        found = applying(mangled)
        assert name not in found
        assert set(NAMES) - {name} - READERS.get(name, set()) <= found


@st.composite
def mangled_bytes(draw: st.DrawFn, text: bytes) -> bytes:
    """Some edits of a file: of bytes, of lines, or of the whole."""
    marks = [mark.encode() for mark in ("\f", "\x0b", "\x1c", "\u2028", "\r", "\\\n", '"""', "#")]
    for _ in range(draw(st.integers(1, 4))):
        lines = text.splitlines(keepends=True)
        first = draw(st.integers(0, len(lines)))
        last = draw(st.integers(first, min(len(lines), first + 40)))
        head, some_lines, tail = lines[:first], lines[first:last], lines[last:]
        at = draw(st.integers(0, len(text)))
        some = draw(st.binary(max_size=4) | st.sampled_from(marks))
        changed = [
            text[:at] + some + text[at:],
            text[:at] + some + text[at + len(some) :],
            text[:at] + text[at + draw(st.integers(1, 30)) :],
            text[:at],
            b"".join(head + tail),
            b"".join(head + some_lines * 2 + tail),
            b"".join(head + some_lines[::-1] + tail),
            b"".join(head + [b"    " + line for line in some_lines] + tail),
            b"".join(tail + head),
            b"\xef\xbb\xbf" + text,
            text.replace(b"\n", b"\r\n"),
            b"",
        ]
        text = draw(st.sampled_from(changed))
    return text


def meaning(text: str | bytes, qualname: str) -> list[str] | None:
    """The syntax of every definition of a name, as Python reads the text; None if it can't."""
    try:
        nodes: list[ast.AST] = [ast.parse(text)]
    except (SyntaxError, ValueError):
        return None
    for name in qualname.split("."):
        nodes = [definition for node in nodes for definition in _named(node, name)]
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                # Of blank lines, the fingerprint keeps only that they are blank.
                part.value = re.sub(r"(?m)^[ \t]+$", "", part.value)
    return [ast.dump(node) for node in nodes]


def _named(scope: ast.AST, name: str) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == name:
                yield node
        elif isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            yield node
        else:
            yield from _named(node, name)


@settings(max_examples=400)
@given(mangled_bytes(MODULE.encode()))
def test_a_mangled_module_applies_only_where_its_definition_is_whole(text: bytes) -> None:
    for name in applying(text):
        assert meaning(text, name) == meaning(MODULE, name)


def test_a_line_ends_only_where_python_ends_it(tmp_path: Path) -> None:
    """Otherwise code that became part of a comment would look unchanged."""
    assert "plain" not in applying(MODULE.replace("another.\n", "another.\f"))
    comment = "    # a comment\n    return x\n"
    mangled = MODULE.replace("    return x\n", comment, 1)
    for end in ("\f", "\x0b", "\x1c", "\x85", "\u2028"):
        text = mangled.replace("# a comment\n", f"# a comment{end}", 1)
        assert meaning(mangled, "cached") != meaning(text, "cached")
        digests = []
        for each in (mangled, text):
            with suppress(source.TreeError):
                definition = write(tmp_path, each).definition("sglang.srt.m:cached")
                digests.append(definition and definition.digest)
        assert digests[0] not in {None, *digests[1:]}


def test_what_is_nested_too_deep_is_one_sentence() -> None:
    for depth in (1500, 3000):
        chain = "if a: pass\n" + "elif a: pass\n" * depth
        assert applying(f"{MODULE}\n{chain}") in (set(), set(NAMES))
    assert applying(MODULE + "\nx = " + "(" * 5000) == set()


@pytest.mark.parametrize("what", ["a folder", "a link to itself", "nothing", "unreadable", "NUL"])
def test_a_file_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    tree = write(tmp_path, MODULE)
    path = tmp_path / "srt" / "m.py"
    if what == "unreadable":
        monkeypatch.setattr(Path, "is_file", mock.Mock(side_effect=PermissionError(13, "denied")))
    else:
        path.unlink()
    if what == "a folder":
        path.mkdir()
    elif what == "a link to itself":
        path.symlink_to(path)
    elif what == "NUL":
        path.write_text(f"{MODULE}\0")
    words = {judged.word for judged in verdict.judge_each([throwaway_set()], tree)}
    monkeypatch.undo()
    assert words == {"refused"} if what == "unreadable" else words <= {"refused", "absent"}


@pytest.mark.parametrize("path", ["x" * 5000, "a/" * 3000, "\0", "", ".", "/dev/null", "~"])
def test_a_path_that_is_no_tree(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["list", "--sglang-path", path]) == 2
    out, err = capsys.readouterr()
    assert "Traceback" not in out
    (line,) = err.splitlines()
    assert line.startswith("sglang-perf-patches: ")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What verdicts read of one release, to be mangled and restored.

    Only the file that is mangled is parsed: the package knows the others.
    """
    whole = source.Tree(source.find(downloads.tree("0.5.17")))
    verdict.judge_each(sets.load(), whole)
    root = tmp_path_factory.mktemp("release") / "sglang"
    versions = filter(None, map(whole.path, ("sglang", "sglang.version", "sglang._version")))
    for path in (*whole.read, *versions):
        target = root / path.relative_to(whole.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return root


@settings(max_examples=40 * int(os.environ.get(tiers.DEPTH, "4")))
@given(data=st.data())
def test_a_mangled_release(copy: Path, data: st.DataObject) -> None:
    before = {
        judged.patch.id: judged for judged in verdict.judge_each(sets.load(), source.Tree(copy))
    }
    path = data.draw(st.sampled_from(sorted(copy.rglob("*.py"))))
    whole = path.read_bytes()
    text = data.draw(mangled_bytes(whole))
    path.write_bytes(text)
    try:
        after = verdict.judge_each(sets.load(), source.Tree(copy))
    finally:
        path.write_bytes(whole)
    meant = functools.cache(meaning)
    for judged in after:
        assert len(judged.reason.splitlines()) == 1
        if judged.word == "applies":
            for reference in judged.variant.targets + judged.variant.depends:
                if source.Tree(copy).path(module_of(reference)) == path:
                    name = qualname_of(reference)
                    assert meant(text, name) == meant(whole, name), reference
        if before[judged.patch.id].word == "refused":
            assert judged.word != "applies"
