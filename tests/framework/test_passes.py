"""What is remembered of passes holds as long as nothing has changed that the tests reach."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

import reads
import released
import tiers
from passes import Memory, imported_by, surroundings
from sglang_perf_patches import sets
from sglang_perf_patches.model import releases

PATCHES = "src/sglang_perf_patches/sets/mla"
BODY, OTHER = f"{PATCHES}/one/body.py", f"{PATCHES}/other/body.py"
CORE, DECLARED = "src/sglang_perf_patches/live/engine.py", f"{PATCHES}/other/__init__.py"
KNOWN, HARNESS, PINS = f"{PATCHES}/known.json", "tests/harness/a.py", "tests/harness/cpu.txt"
TEST, CHECK = "tests/mla/test_one.py", "src/sglang_perf_patches/verify/mla/one.py"
FILES = (BODY, OTHER, CORE, DECLARED, KNOWN, HARNESS, PINS, TEST, CHECK, "tests/mla/test_two.py")
REACHED = {BODY, TEST, CHECK}


class Place:
    """A checkout, a release and a folder for passes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.tree = folder, folder / "root", folder / "0.5.23"
        for name in FILES:
            self.write(name, name)
        self.tree.mkdir()
        (self.tree / "a.py").write_text("stock")
        subprocess.run(["git", "init", "--quiet", self.root], check=True)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def memory(self, asked: str = "") -> Memory:
        return Memory(self.folder / "passes", self.root, surroundings([self.tree]) + asked)

    def has(self, asked: str = "") -> bool:
        """Whether a run that begins now would leave the test out."""
        return self.memory(asked).has("group", "test")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """One whose test has passed."""
    made = Place(tmp_path)
    assert not made.has()
    made.memory().keep("group", ["test"], REACHED)
    assert made.has()
    return made


def change_a_release(place: Place) -> None:
    """Of the same size and with the same time."""
    file = place.tree / "a.py"
    was = file.stat()
    file.write_text("Stock")
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))


INSTALLED = [SimpleNamespace(name="a", version="1")]
CHANGES: dict[str, Callable[[Place, pytest.MonkeyPatch], object]] = {
    "another CPU": lambda _, patch: patch.setattr(platform, "machine", lambda: "another"),
    "another Python": lambda _, patch: patch.setattr(sys, "version", "another"),
    "a dependency": lambda _, patch: patch.setattr(metadata, "distributions", lambda: INSTALLED),
    "another release": lambda place, _: change_a_release(place),
    "a file beside": lambda place, _: place.write(f"{PATCHES}/one/torch.py", ""),
    "no body": lambda place, _: (place.root / BODY).unlink(),
}


@pytest.mark.parametrize("name", [BODY, CORE, DECLARED, KNOWN, HARNESS, PINS, TEST, CHECK])
def test_another_file_that_it_reaches_is_another_test(place: Place, name: str) -> None:
    place.write(name, "changed")
    assert not place.has()
    place.write(name, name)
    assert place.has()


@pytest.mark.parametrize("change", CHANGES)
def test_so_is_any_other_thing(place: Place, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    CHANGES[change](place, monkeypatch)
    assert not place.has()


def test_so_are_other_options_and_another_test_is_not_known(place: Place) -> None:
    assert not place.has("--all")
    assert not place.memory().has("group", "another test")
    assert not place.memory().has("another group", "test")


@pytest.mark.parametrize("name", [OTHER, "tests/mla/test_two.py"])
def test_what_it_does_not_read_may_change(place: Place, name: str) -> None:
    place.write(name, "changed")
    assert place.has()


def test_a_test_that_starts_a_process_may_read_anything(place: Place) -> None:
    place.memory().keep("group", ["test"], {reads.ANY})
    place.write(OTHER, "changed")
    assert not place.has()


def test_nothing_is_kept_of_a_run_in_which_a_file_changes(place: Place) -> None:
    memory = place.memory()
    place.write(BODY, "changed")
    memory.keep("group", ["test"], REACHED)
    assert not place.has()


def test_a_damaged_memory_knows_nothing(place: Place) -> None:
    (file,) = (place.folder / "passes").iterdir()
    file.write_text('{"tests": ["test"]')
    assert not place.has()


def test_what_a_module_and_its_helpers_import_is_reached() -> None:
    found = imported_by(Path(__file__))
    tests = ("framework/test_passes.py", "harness/tiers.py", "conftest.py")
    assert {f"tests/{name}" for name in tests} <= found
    assert "src/sglang_perf_patches/model/releases.py" in found, "by way of the harness"
    assert not [path for path in found if path.endswith("/body.py")]


def test_a_process_of_ours_may_read_anything_and_a_tool_nothing() -> None:
    reads.noted.discard(reads.ANY)
    subprocess.run(["true"], check=True)
    assert reads.ANY not in reads.noted
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert reads.ANY in reads.noted


def test_a_fork_tells_what_it_and_its_own_forks_read(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "import sglang_perf_patches.sets.mlx.pool_write.body\n"
        "if (pid := os.fork()) == 0:\n"
        "    import sglang_perf_patches.sets.mlx.next_turn.body\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    reads.noted.clear()
    released.run(released.tree("0.5.23", imported=False), script)
    read = {path.split("/")[-2] for path in reads.noted if path.endswith("/body.py")}
    assert read == {"pool_write", "next_turn"}
    assert reads.ANY not in reads.noted


MLA = sets.declared("mla").patches
IDS = [patch.id for name in sets.NAMES for patch in sets.declared(name).patches]
SOURCE = "src/sglang_perf_patches"


@pytest.mark.parametrize(
    ("changed", "patches"),
    [
        (f"{SOURCE}/sets/mla/draft_metadata/body.py", {"mla.draft-metadata"}),
        (f"{SOURCE}/verify/mla/draft_metadata.py", {"mla.draft-metadata"}),
        ("tests/proof/swa/page_size_1.py", {"swa.page-size-1"}),
        ("tests/proof/mla/cases.py", {patch.id for patch in MLA}),
        (f"{SOURCE}/sets/mla/proven.py", {patch.id for patch in MLA}),
        (f"{SOURCE}/sets/mla/known.json", set()),
        (f"{SOURCE}/live/engine.py", set()),
        ("tests/proof/mlx/cases.py", set()),  # of more patches than the default tier has time for
    ],
)
def test_a_file_is_of_its_patch_or_of_the_whole_set(changed: str, patches: set[str]) -> None:
    assert tiers.touched_by([changed], IDS) == patches


def test_each_variant_of_a_touched_patch_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = max(MLA, key=lambda each: len(each.variants))
    assert len(patch.variants) > 1
    monkeypatch.setattr(tiers, "touched", lambda: {patch.id})
    for variant in patch.variants:
        (release,) = tiers.newest_of(variant.releases)
        assert patch.id in tiers.shown_there(MLA, release, [patch.id], releases.KNOWN)
    assert {*tiers.of_touched("mla", releases.KNOWN)} <= {
        release for variant in patch.variants for release in variant.releases
    }
    assert tiers.of_touched("framework", releases.KNOWN) == {}
