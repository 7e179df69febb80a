"""Reading a tree as text."""

from __future__ import annotations

import hashlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from sglang_perf_patches.compat import source

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


def sample(folder: Path, text: str = MODULE, name: str = "work.py") -> source.Tree:
    package = folder / "sglang"
    (package / "srt").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "srt" / name).write_bytes(text.encode())
    return source.Tree(source.find(folder))


def text_of(tree: source.Tree, name: str) -> str | None:
    definition = tree.definition(f"sglang.srt.work:{name}")
    return definition.text if definition else None


def test_definitions_are_dedented_source_with_decorators(tmp_path: Path) -> None:
    tree = sample(tmp_path)
    assert text_of(tree, "plain") == 'def plain(x):\n    """Doc."""\n    return x  # why'
    assert text_of(tree, "Worker.fixed") == "@staticmethod\ndef fixed():\n    return 1"
    assert text_of(tree, "Worker.Inner.deep") == 'def deep(self):\n    return "deep"'
    assert text_of(tree, "LIMIT") == "LIMIT = 4"
    assert text_of(tree, "paths") == "import os.path as paths"
    assert text_of(tree, "SIZE") == "SIZE: int = 3"
    assert text_of(tree, "Worker.flag") == "flag = True"
    assert text_of(tree, "fallback") == "def fallback():\n    return None"


def test_every_piece_of_a_name_counts(tmp_path: Path) -> None:
    tree = sample(tmp_path)
    name = tree.definition("sglang.srt.work:Worker.name")
    maybe = tree.definition("sglang.srt.work:maybe")
    assert name
    assert maybe
    assert len(name.lines) == len(maybe.lines) == 2
    assert "return self._name" in name.text
    assert "self._name = value" in name.text
    assert "posix" in maybe.text
    assert "other" in maybe.text


def test_digest_is_the_sha256_of_the_text(tmp_path: Path) -> None:
    definition = sample(tmp_path).definition("sglang.srt.work:LIMIT")
    assert definition
    assert definition.digest == hashlib.sha256(b"LIMIT = 4").hexdigest()


def test_a_change_elsewhere_and_line_ends_do_not_matter(tmp_path: Path) -> None:
    before = sample(tmp_path / "a").definition("sglang.srt.work:Worker.fixed")
    changed = "# a comment\n" + MODULE.replace("return x  # why", "return x  # because")
    after = sample(tmp_path / "b", changed).definition("sglang.srt.work:Worker.fixed")
    windows = sample(tmp_path / "c", MODULE.replace("\n", "\r\n"))
    crlf = windows.definition("sglang.srt.work:Worker.fixed")
    assert before
    assert after
    assert crlf
    assert before.digest == after.digest == crlf.digest
    assert before.lines != after.lines


def test_a_change_inside_matters(tmp_path: Path) -> None:
    before = sample(tmp_path / "a").definition("sglang.srt.work:plain")
    after = sample(tmp_path / "b", MODULE.replace("# why", "# WHY")).definition(
        "sglang.srt.work:plain"
    )
    assert before
    assert after
    assert before.digest != after.digest


@pytest.mark.parametrize("name", ["nothing", "Worker.nothing", "plain.inner", "Worker.fixed.x"])
def test_missing_names(tmp_path: Path, name: str) -> None:
    assert text_of(sample(tmp_path), name) is None


def test_missing_module(tmp_path: Path) -> None:
    assert sample(tmp_path).definition("sglang.srt.other:plain") is None


def test_a_package_is_a_module(tmp_path: Path) -> None:
    tree = sample(tmp_path)
    (tree.root / "srt" / "pack").mkdir()
    (tree.root / "srt" / "pack" / "__init__.py").write_text("def f(): pass\n")
    assert tree.definition("sglang.srt.pack:f") is not None


@pytest.mark.parametrize("place", ["sglang", "", "python"])
def test_find_the_package_its_parent_or_a_checkout(tmp_path: Path, place: str) -> None:
    root = sample(tmp_path / ("python" if place == "python" else "")).root
    given = tmp_path / "sglang" if place == "sglang" else tmp_path
    assert source.find(given) == root


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
    ],
)
def test_a_file_that_can_not_be_read(tmp_path: Path, content: bytes, said: str) -> None:
    tree = sample(tmp_path)
    (tree.root / "srt" / "work.py").write_bytes(content)
    with pytest.raises(source.TreeError, match=said) as caught:
        tree.definition("sglang.srt.work:plain")
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_a_file_is_no_module(tmp_path: Path) -> None:
    tree = sample(tmp_path)
    (tree.root / "srt" / "dir.py").mkdir()
    assert tree.definition("sglang.srt.dir:f") is None


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


BODY = 'def plain(x):\n    return "{}"\n'


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
    assert text_of(tree, "plain") == BODY.format("ö").rstrip("\n")
    scope: dict[str, object] = {}
    exec(compile(path.read_bytes(), path, "exec"), scope)
    assert scope["plain"](1) == "ö"  # type: ignore[operator]


@pytest.mark.parametrize(
    "content",
    [
        BODY.format("ö").encode("latin-1"),
        b"# coding: no-such-encoding\n" + BODY.format("o").encode(),
        b"\xef\xbb\xbf# coding: latin-1\n" + BODY.format("o").encode(),
    ],
)
def test_what_python_can_not_decode_neither_do_we(tmp_path: Path, content: bytes) -> None:
    tree = sample(tmp_path)
    path = tree.root / "srt" / "work.py"
    path.write_bytes(content)
    with pytest.raises(SyntaxError):
        compile(path.read_bytes(), path, "exec")
    with pytest.raises(source.TreeError, match=r"work\.py can't be read: it is not UTF-8 text"):
        tree.definition("sglang.srt.work:plain")


def test_a_package_comes_before_a_module_of_its_name_as_in_an_import(tmp_path: Path) -> None:
    tree = sample(tmp_path)
    (tree.root / "srt" / "work").mkdir()
    (tree.root / "srt" / "work" / "__init__.py").write_text("def package(): pass\n")
    assert text_of(tree, "package") == "def package(): pass"


@pytest.mark.parametrize("name", ["work.pyc", "work/__init__.pyc", f"work{EXTENSION_SUFFIXES[0]}"])
def test_a_module_without_its_source_is_not_missing(tmp_path: Path, name: str) -> None:
    tree = sample(tmp_path)
    (tree.root / "srt" / "work.py").unlink()
    assert text_of(source.Tree(tree.root), "plain") is None
    path = tree.root / "srt" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(source.TreeError, match=r"^no source: sglang\.srt\.work has only"):
        tree.definition("sglang.srt.work:plain")


def test_a_tree_of_bytecode_is_a_tree(tmp_path: Path) -> None:
    root = sample(tmp_path).root
    (root / "__init__.py").rename(root / "__init__.pyc")
    assert source.find(tmp_path) == root
