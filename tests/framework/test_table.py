"""The table in the package of what was read of files: it saves time and changes no verdict."""

import os
import sys
from pathlib import Path

import pytest

from sglang_perf_patches.compat import parsing, shipped, source
from tests.maintain import fingerprints

REFERENCE = "sglang.srt.work:Worker"
TEXT = '''\
class Worker:
    """Works."""

    @property
    def name(self):
        return "stock"

    def step(self, x):
        return x + 1


LIMIT = 4
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    package = tmp_path / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "__init__.py").touch()
    write(package, TEXT)
    return package


def write(root: Path, text: str) -> Path:
    path = root / "srt" / "work.py"
    path.write_text(text)
    return path


def read(root: Path, reference: str = REFERENCE) -> source.Definition | None:
    """A definition, as a fresh process sees it."""
    return source.Tree(root).definition(reference)


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
    files = {shipped.key(each, root): tree.read[each] for each in tree.read}
    path.write_bytes(fingerprints.render_table(files))
    monkeypatch.setattr(shipped, "TABLE", path)
    return path


@pytest.mark.usefixtures("table")
def test_what_was_read_is_in_the_table_and_not_parsed_again(root: Path, parsed: list[Path]) -> None:
    found = read(root)
    assert read(root, "sglang.srt.work:nothing") is None
    assert not parsed
    assert found
    assert found == source.Tree(root, table=dict).definition(REFERENCE)
    assert found.text == TEXT.partition("\n\n\n")[0]
    assert [member.reference for member in found.members] == [
        f"{REFERENCE}.name",
        f"{REFERENCE}.step",
    ]
    parsed.clear()
    assert read(root, "sglang.srt.work:LIMIT") is not None
    assert len(parsed) == 1


@pytest.mark.usefixtures("table")
def test_another_text_or_place_is_parsed(root: Path, parsed: list[Path]) -> None:
    """Also a file with the size and times of the known one, as reproducible images have."""
    before = read(root)
    path = root / "srt" / "work.py"
    times = path.stat()
    write(root, TEXT.replace("x + 1", "x + 2"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = read(root)
    assert before
    assert after
    assert before.digest != after.digest
    (root / "srt" / "other.py").write_text(TEXT)
    assert read(root, "sglang.srt.other:Worker") is not None
    assert len(parsed) == 2


@pytest.mark.usefixtures("table")
def test_a_text_that_is_not_what_was_judged_is_an_error(root: Path) -> None:
    definition = read(root)
    assert definition
    write(root, TEXT.replace("x + 1", "x + 2"))
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
        monkeypatch.setattr(shipped, "makers", lambda: "0")
    else:
        table.write_bytes(table.read_bytes()[: -20 if how == "cut" else 0])
    assert read(root) is not None
    assert len(parsed) == 1
