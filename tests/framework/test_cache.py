"""What is kept of a tree between processes: it saves time and changes no verdict."""

from __future__ import annotations

import hashlib
import json
import multiprocessing.process
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sglang_perf_patches.compat import cache, parsing, shipped, source
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


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own, and a temporary folder."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "sglang-perf-patches" / "judged"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree."""
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
    tree = source.at(root)
    definition = tree.definition(reference)
    tree.save()
    return definition


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


def test_what_was_read_is_the_same_from_the_cache_and_not_parsed_again(
    root: Path, parsed: list[Path]
) -> None:
    before = read(root)
    missing = read(root, "sglang.srt.work:nothing")
    assert len(parsed) == 2
    assert (read(root), read(root, "sglang.srt.work:nothing")) == (before, missing)
    assert len(parsed) == 2
    assert before
    assert missing is None
    assert before.text == TEXT.partition("\n\n\n")[0]
    assert [member.reference for member in before.members] == [
        f"{REFERENCE}.name",
        f"{REFERENCE}.step",
    ]
    assert read(root, "sglang.srt.work:LIMIT") is not None
    assert len(parsed) == 3


def test_a_changed_file_is_read_again(root: Path, parsed: list[Path]) -> None:
    before = read(root)
    path = write(root, TEXT.replace("x + 1", "x + 2"))
    after = read(root)
    assert before
    assert after
    assert before.digest != after.digest
    # Nor does a file pass for it that bears the times of the former one.
    times = path.stat()
    write(root, TEXT.replace("x + 1", "x + 3"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    again = read(root)
    assert again
    assert again.digest not in {before.digest, after.digest}
    assert len(parsed) == 3


def test_a_file_is_known_by_its_content_and_not_by_what_its_folder_says_of_it(
    root: Path, parsed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that are built reproducibly have equal sizes, times and inodes at one path."""
    path = root / "srt" / "work.py"
    same = path.stat()
    before = read(root)
    write(root, TEXT.replace("x + 1", "x + 2"))
    stat_of = os.stat
    monkeypatch.setattr(
        os, "stat", lambda file, **how: same if file == path else stat_of(file, **how)
    )
    after = source.at(root).definition(REFERENCE)
    assert before
    assert after
    assert before.digest != after.digest
    assert len(parsed) == 2


def test_a_file_that_changes_while_it_is_read_is_not_kept(root: Path, parsed: list[Path]) -> None:
    tree = source.at(root)
    assert tree.definition("sglang.srt.work:LIMIT") is not None
    write(root, TEXT.replace("LIMIT = 4", "LIMIT = 44"))
    assert tree.definition(REFERENCE) is not None
    tree.save()
    limit = read(root, "sglang.srt.work:LIMIT")
    assert limit
    assert limit.text == "LIMIT = 44"


def test_a_text_that_is_not_what_was_judged_is_an_error(root: Path) -> None:
    read(root)
    definition = read(root)
    assert definition
    write(root, TEXT.replace("x + 1", "x + 2"))
    with pytest.raises(source.TreeError, match="changed while it was read"):
        _ = definition.text


def test_it_is_this_users_alone(root: Path, home: Path) -> None:
    read(root)
    (file,) = home.iterdir()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def lie(file: Path) -> None:
    """Another digest for a definition."""
    text = file.read_text()
    digest = json.loads(text.partition("\n")[2])["files"].popitem()[1][1]
    known = digest[f"definition:{REFERENCE}"]["own"]
    file.write_text(text.replace(known, "0" * 64))


def rewrite(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    """Change what the file says, and sign it anew."""

    def damage(file: Path) -> None:
        data = json.loads(file.read_text().partition("\n")[2])
        text = json.dumps(change(data) or data)
        file.write_text(hashlib.sha256(text.encode()).hexdigest() + "\n" + text)

    return damage


def of_another_version(data: dict[str, object]) -> None:
    data["made by"] = "0.0.0"


def of_another_tree(data: dict[str, object]) -> None:
    data["root"] = "/elsewhere"


def of_another_shape(data: dict[str, object]) -> None:
    data["files"] = [1, 2]


def of_another_shape_inside(data: dict[str, object]) -> None:
    files = data["files"]
    assert isinstance(files, dict)
    for kept in files.values():
        kept[1] = {name: {"lines": 7} for name in kept[1]}


def link(file: Path) -> None:
    target = file.parent.parent / "elsewhere.json"
    file.rename(target)
    file.symlink_to(target)


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def open_to_others(file: Path) -> None:
    file.parent.chmod(0o755)


def folder_elsewhere(file: Path) -> None:
    elsewhere = file.parent.with_name("elsewhere")
    file.parent.rename(elsewhere)
    file.parent.symlink_to(elsewhere)


DAMAGES = (
    *(truncate, empty, lie, link, pipe, open_to_others, folder_elsewhere),
    *map(
        rewrite,
        (
            of_another_version,
            of_another_tree,
            of_another_shape,
            of_another_shape_inside,
            lambda _: [1, 2],
        ),
    ),
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_that_is_damaged_or_not_private_is_ignored(
    root: Path, home: Path, parsed: list[Path], damage: Callable[[Path], None]
) -> None:
    before = read(root)
    (file,) = home.iterdir()
    damage(file)
    assert read(root) == before
    assert len(parsed) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file away")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_one_that_is_somebody_elses_is_ignored(
    root: Path, home: Path, parsed: list[Path], what: str
) -> None:
    before = read(root)
    (file,) = home.iterdir()
    os.chown(file if what == "file" else home, 12345, 12345)
    assert read(root) == before
    assert len(parsed) == 2


def trouble_of(root: Path) -> str:
    """What a fresh process that judges has to say of its cache."""
    tree = source.at(root)
    assert tree.cache
    assert tree.definition(REFERENCE)
    tree.save()
    return tree.cache.trouble


@pytest.mark.parametrize("named", ["/proc/no-such-home", "/dev/null"])
def test_without_a_home_it_is_kept_in_the_temporary_folder(
    root: Path, parsed: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    """The first process says so."""
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    place = tmp_path / "temporary" / f"sglang-perf-patches-{os.getuid()}" / "judged"
    assert trouble_of(root).endswith(f"sglang is kept in {place}")
    assert trouble_of(root) == ""
    assert len(parsed) == 1
    assert [stat.S_IMODE(each.stat().st_mode) for each in (place.parent, place)] == [0o700] * 2


def test_a_home_that_is_read_only_is_none(
    root: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(mode=0o700, parents=True)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != home and access(path, mode))
    assert f"{home} can't be written" in trouble_of(root)
    assert not list(home.iterdir())


@pytest.mark.parametrize("what", ["no folder", "open to others", "a link"])
def test_without_any_place_it_costs_time_and_is_said_once_a_server(
    root: Path, parsed: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no-such-home")
    base = tmp_path / "temporary" / f"sglang-perf-patches-{os.getuid()}"
    if what == "no folder":
        monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    elif what == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        base.symlink_to(tmp_path / "elsewhere")
    else:
        base.mkdir(mode=0o700)
        base.chmod(0o770)
    assert trouble_of(root).endswith("nothing that is read of sglang is kept")
    monkeypatch.setattr(multiprocessing.process, "parent_process", lambda: "the launcher")
    assert trouble_of(root) == ""
    assert len(parsed) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder away")
@pytest.mark.parametrize("depth", [0, 1])
def test_another_users_cache_folder_is_not_used(root: Path, tmp_path: Path, depth: int) -> None:
    """As after ``sudo``, which may keep the environment: its user could not use ours later."""
    base = tmp_path / "home" / "sglang-perf-patches"
    base.mkdir(parents=True)
    os.chown((base, base.parent)[depth], 12345, 12345)
    assert "is another user's" in trouble_of(root)
    assert not list(base.iterdir())


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_shipped_of_a_file_is_not_parsed(
    root: Path, parsed: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kept: bool
) -> None:
    """Of that content at that place; and then it is kept."""
    if not kept:
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no-such-home")
        monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    definition = source.Tree(root).definition(REFERENCE)
    ship(root, monkeypatch, tmp_path / "table.xz")
    parsed.clear()
    assert read(root) == read(root) == definition
    assert not parsed
    text = (tmp_path / "table.xz").read_bytes()
    (tmp_path / "table.xz").unlink()
    assert read(root) == definition
    assert len(parsed) == (0 if kept else 1)
    (tmp_path / "table.xz").write_bytes(text)
    parsed.clear()
    write(root, TEXT.replace("x + 1", "x + 2"))
    assert read(root) != definition
    (root / "srt" / "other.py").write_text(TEXT)
    assert read(root, "sglang.srt.other:Worker") is not None
    assert len(parsed) == 2


def ship(root: Path, monkeypatch: pytest.MonkeyPatch, table: Path) -> None:
    """A table in which the digest of the class is, as everything else, what is read."""
    path = root / "srt" / "work.py"
    stamp = hashlib.sha256(path.read_bytes()).hexdigest()
    definition = parsing.Module(path, "sglang.srt.work").definition(REFERENCE)
    values = {f"definition:{REFERENCE}": definition}
    table.write_bytes(fingerprints.render_table({shipped.key(stamp, "srt/work.py"): values}))
    monkeypatch.setattr(shipped, "TABLE", table)


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "of other code", "without lzma"])
def test_a_table_that_can_not_be_used_costs_only_time(
    root: Path, parsed: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    table = tmp_path / "table.xz"
    ship(root, monkeypatch, table)
    if how == "missing":
        table.unlink()
    elif how == "without lzma":
        monkeypatch.setitem(sys.modules, "lzma", None)
    elif how == "of other code":
        monkeypatch.setattr(shipped, "makers", lambda: "0")
    else:
        table.write_bytes(table.read_bytes()[: -20 if how == "cut" else 0])
    parsed.clear()
    assert read(root) is not None
    assert len(parsed) == 1


def test_a_user_without_a_home_has_none(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    def lacking() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lacking)
    assert read(root) is not None
    with pytest.raises(OSError, match="home directory"):
        cache.user_folder()


def test_a_relative_cache_folder_is_none_as_the_convention_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.user_folder() == Path.home() / ".cache" / "sglang-perf-patches"


WRITER = """
import sys
from pathlib import Path
from sglang_perf_patches.compat import cache
root, name = Path(sys.argv[1]), sys.argv[2]
for number in range(30):
    mine = cache.Cache(root)
    assert mine.get(root / "srt" / "work.py", "never") is cache.NOTHING
    mine.put(root / f"{name}.py", f"{number}", "x" * 5000)
    mine.save()
"""


def test_processes_that_write_at_once_leave_a_whole_file(root: Path, home: Path) -> None:
    for name in "ab":
        (root / f"{name}.py").touch()

    def start(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WRITER, str(root), name]
        return subprocess.run(command, capture_output=True, text=True, timeout=600)

    with ThreadPoolExecutor() as executor:
        ended = list(executor.map(start, "abab"))
    assert [done.stderr for done in ended] == [""] * 4
    (file,) = home.iterdir()
    digest, _, text = file.read_bytes().partition(b"\n")
    assert hashlib.sha256(text).hexdigest().encode() == digest
    last = cache.Cache(root)
    assert "x" * 5000 in {last.get(root / f"{name}.py", "29") for name in "ab"}


def test_a_later_writer_keeps_what_others_found(root: Path) -> None:
    one, two = source.at(root), source.at(root)
    (root / "srt" / "more.py").write_text("def f(): pass\n")
    assert one.definition(REFERENCE) is not None
    assert two.definition("sglang.srt.more:f") is not None
    one.save()
    two.save()
    kept = cache.Cache(root)
    assert kept.get(root / "srt" / "work.py", f"definition:{REFERENCE}") is not cache.NOTHING
    assert kept.get(root / "srt" / "more.py", "definition:sglang.srt.more:f") is not cache.NOTHING


def test_old_trees_and_what_a_killed_process_left_go(
    root: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_TREES", 3)
    read(root)
    (home / "old.json.0123.part").touch()
    (home / "new.json.0123.part").touch()
    for age, name in enumerate(("one", "two", "three"), 1):
        (home / f"{name}.json").touch()
        os.utime(home / f"{name}.json", (time.time() - 100 * age,) * 2)
    os.utime(home / "old.json.0123.part", (time.time() - 1000,) * 2)
    write(root, TEXT + "\n")
    read(root)
    names = {path.name for path in home.iterdir()}
    assert names == {cache.Cache(root).name, "one.json", "two.json", "new.json.0123.part"}
