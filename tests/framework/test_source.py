"""Reading a tree as text; the package's table of what was read saves time and changes nothing."""

import hashlib
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from sglang_perf_patches.compat import parsing, source
from tests.maintain import fingerprints

MODULE = '''\
import os
import os.path as paths

LIMIT = 4
SIZE: int = 3

def plain(x):
    """Doc."""
    return x  # why

class Worker:
    flag = True

    @staticmethod
    def fixed():
        return 1

    @property
    def name(self):
        return self._name

    @name.setter
    def name(self, value):
        self._name = value

    class Inner:
        def deep(self):
            return "deep"

if os.name == "posix":

    def maybe():
        return "posix"

else:

    def maybe():
        return "other"

try:
    import fast
except ImportError:

    def fallback():
        return None
'''


BODY = 'def plain(x):\n    return "{}"\n'


def sample(folder: Path, text: str = MODULE, name: str = "work.py") -> source.Tree:
    package = folder / "sglang"
    (package / "srt").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "srt" / name).write_bytes(text.encode())
    return source.Tree(source.find(folder))


def definition_in(tree: source.Tree, name: str) -> source.Definition:
    definition = tree.definition(f"sglang.srt.work:{name}")
    assert definition
    return definition


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", 'def plain(x):\n    """Doc."""\n    return x  # why'),
        ("Worker.fixed", "@staticmethod\ndef fixed():\n    return 1"),
        ("Worker.Inner.deep", 'def deep(self):\n    return "deep"'),
        ("LIMIT", "LIMIT = 4"),
        ("paths", "import os.path as paths"),
        ("SIZE", "SIZE: int = 3"),
        ("Worker.flag", "flag = True"),
        ("fallback", "def fallback():\n    return None"),
    ],
)
def test_definitions_are_dedented_source(tmp_path: Path, name: str, text: str) -> None:
    assert definition_in(sample(tmp_path), name).text == text


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("Worker.name", ("return self._name", "self._name = value")),
        ("maybe", ("posix", "other")),
    ],
)
def test_every_piece_of_a_name_counts(tmp_path: Path, name: str, pieces: tuple[str, ...]) -> None:
    definition = definition_in(sample(tmp_path), name)
    assert len(definition.lines) == 2
    assert all(piece in definition.text for piece in pieces)


def test_digest_is_the_sha256_of_the_text(tmp_path: Path) -> None:
    digest = definition_in(sample(tmp_path), "LIMIT").digest
    assert digest == hashlib.sha256(b"LIMIT = 4").hexdigest()


def test_a_change_inside_matters_and_one_elsewhere_or_line_ends_do_not(tmp_path: Path) -> None:
    changed = "# a comment\n" + MODULE.replace("return x  # why", "return x  # because")
    before = sample(tmp_path / "a")
    after = sample(tmp_path / "b", changed)
    windows = sample(tmp_path / "c", MODULE.replace("\n", "\r\n"))
    fixed = [definition_in(tree, "Worker.fixed") for tree in (before, after, windows)]
    assert len({each.digest for each in fixed}) == 1
    assert fixed[0].lines != fixed[1].lines
    assert definition_in(before, "plain").digest != definition_in(after, "plain").digest


@pytest.mark.parametrize(
    "name",
    [
        *("work:nothing", "work:Worker.nothing", "work:plain.inner", "work:Worker.fixed.x"),
        *("other:plain", "folder:plain"),
    ],
)
def test_missing_names_and_modules(tmp_path: Path, name: str) -> None:
    tree = sample(tmp_path)
    (tree.root / "srt" / "folder.py").mkdir()
    assert tree.definition(f"sglang.srt.{name}") is None


def test_a_package_is_a_module_and_comes_before_one_of_its_name(tmp_path: Path) -> None:
    tree = sample(tmp_path)
    for name in ("pack", "work"):
        (tree.root / "srt" / name).mkdir()
        (tree.root / "srt" / name / "__init__.py").write_text("def package(): pass\n")
        definition = tree.definition(f"sglang.srt.{name}:package")
        assert definition
        assert definition.text == "def package(): pass"


@pytest.mark.parametrize(("parent", "given"), [("", "sglang"), ("", ""), ("python", "")])
def test_find_the_package_its_parent_or_a_checkout(tmp_path: Path, parent: str, given: str) -> None:
    root = sample(tmp_path / parent).root
    assert source.find(tmp_path / given) == root


@pytest.mark.parametrize("name", ["", "missing", "file"])
def test_not_a_tree(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(source.TreeError, match="not a sglang tree"):
        source.find(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"def broken(:\n", "can't be parsed, line 1"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"def f():\n    return (1,\n", "can't be parsed"),
        (b"x = 1\0", "can't be parsed"),
        (BODY.format("ö").encode("latin-1"), "can't be read: it is not UTF-8 text"),
        (b"# coding: no-such-encoding\n" + BODY.format("o").encode(), "it is not UTF-8 text"),
        (b"\xef\xbb\xbf# coding: latin-1\n" + BODY.format("o").encode(), "it is not UTF-8 text"),
    ],
)
def test_what_python_can_not_read_neither_do_we(tmp_path: Path, content: bytes, said: str) -> None:
    tree = sample(tmp_path)
    (tree.root / "srt" / "work.py").write_bytes(content)
    with pytest.raises((SyntaxError, ValueError)):
        compile(content, "work.py", "exec")
    with pytest.raises(source.TreeError, match=rf"^.*work\.py .*{said}.*$"):
        tree.definition("sglang.srt.work:plain")


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("_version.py", "__version__ = version = '0.5.9'\n", "0.5.9"),
        ("version.py", '__version__ = "1.2.3.dev4+g0"\n', "1.2.3.dev4+g0"),
        ("version.py", "__version__ = compute()\n", "unknown"),
    ],
)
def test_version(tmp_path: Path, name: str, text: str, version: str) -> None:
    tree = sample(tmp_path)
    (tree.root / name).write_text(text)
    assert tree.version == version


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + BODY.format("ö").encode(),
        b"\xef\xbb\xbf" + BODY.format("ö").encode().replace(b"\n", b"\r\n"),
        b"# -*- coding: latin-1 -*-\n" + BODY.format("ö").encode("latin-1"),
        b"#!python\n# vim: set fileencoding=cp1252 :\n" + BODY.format("ö").encode("cp1252"),
        b"# coding: utf-8\n" + BODY.format("ö").encode(),
    ],
)
def test_a_file_is_decoded_as_python_does(tmp_path: Path, content: bytes) -> None:
    tree = sample(tmp_path)
    path = tree.root / "srt" / "work.py"
    path.write_bytes(content)
    assert definition_in(tree, "plain").text == BODY.format("ö").rstrip("\n")
    scope: dict[str, object] = {}
    exec(compile(path.read_bytes(), path, "exec"), scope)
    assert scope["plain"](1) == "ö"  # type: ignore[operator]


@pytest.mark.parametrize("name", ["work.pyc", "work/__init__.pyc", f"work{EXTENSION_SUFFIXES[0]}"])
def test_a_module_without_its_source_is_not_missing(tmp_path: Path, name: str) -> None:
    tree = sample(tmp_path)
    (tree.root / "srt" / "work.py").unlink()
    assert source.Tree(tree.root).definition("sglang.srt.work:plain") is None
    path = tree.root / "srt" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(source.TreeError, match=r"^no source: sglang\.srt\.work has only"):
        tree.definition("sglang.srt.work:plain")


def test_a_tree_of_bytecode_is_a_tree(tmp_path: Path) -> None:
    root = sample(tmp_path).root
    (root / "__init__.py").rename(root / "__init__.pyc")
    assert source.find(tmp_path) == root


CHANGED = MODULE.replace("return 1", "return 2")
"""Of the same size."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return sample(tmp_path).root


def read(root: Path, name: str = "Worker") -> source.Definition:
    """A definition, as a fresh process sees it."""
    return definition_in(source.Tree(root), name)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are parsed from now on."""
    paths: list[Path] = []
    first = parsing.Module.__init__

    def count(self: parsing.Module, path: Path, name: str) -> None:
        paths.append(path)
        first(self, path, name)

    monkeypatch.setattr(parsing.Module, "__init__", count)
    return paths


@pytest.fixture
def table(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A table with what was read of the file."""
    path = tmp_path / "table.xz"
    tree = source.Tree(root, table=dict)
    for name in ("Worker", "nothing"):
        tree.definition(f"sglang.srt.work:{name}")
    files = {source.key(each, root): tree.read[each] for each in tree.read}
    path.write_bytes(fingerprints.render_table(files))
    monkeypatch.setattr(source, "TABLE", path)
    return path


@pytest.mark.usefixtures("table")
def test_what_was_read_is_in_the_table_and_not_parsed_again(root: Path, parsed: list[Path]) -> None:
    found = read(root)
    assert source.Tree(root).definition("sglang.srt.work:nothing") is None
    assert not parsed
    assert found == definition_in(source.Tree(root, table=dict), "Worker")
    assert found.text == MODULE[MODULE.index("class Worker") : MODULE.index("\n\nif os")]
    members = [member.reference.partition(":")[2] for member in found.members]
    assert members == ["Worker.fixed", "Worker.name"]
    parsed.clear()
    assert read(root, "LIMIT")
    assert len(parsed) == 1


@pytest.mark.usefixtures("table")
def test_another_text_or_place_is_parsed(root: Path, parsed: list[Path]) -> None:
    """Also a file with the size and times of the known one, as reproducible images have."""
    before = read(root)
    path = root / "srt" / "work.py"
    times = path.stat()
    path.write_text(CHANGED)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert before.digest != read(root).digest
    (root / "srt" / "other.py").write_text(MODULE)
    assert source.Tree(root).definition("sglang.srt.other:Worker")
    assert len(parsed) == 2


@pytest.mark.usefixtures("table")
def test_a_text_that_is_not_what_was_judged_is_an_error(root: Path) -> None:
    definition = read(root)
    (root / "srt" / "work.py").write_text(CHANGED)
    with pytest.raises(source.TreeError, match="changed while it was read"):
        _ = definition.text


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "of other code", "without lzma"])
def test_a_table_that_can_not_be_used_costs_only_time(
    root: Path, table: Path, parsed: list[Path], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "missing":
        table.unlink()
    elif how == "without lzma":
        monkeypatch.setitem(sys.modules, "lzma", None)
    elif how == "of other code":
        monkeypatch.setattr(source, "makers", lambda: "0")
    else:
        table.write_bytes(table.read_bytes()[: -20 if how == "cut" else 0])
    assert read(root)
    assert len(parsed) == 1
