"""Environments are made once, by one process, and a half-made one is rebuilt."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from linux_mlx.environments import environment
from linux_mlx.processes import Failure, members, started

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="the shims are for Linux")


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of requirements that includes another, and a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "small.txt").write_text("# one small package\nsix==1.16.0\n")
    (tmp_path / "some.txt").write_text("-r small.txt\n")
    return tmp_path / "some.txt"


def test_a_finished_environment_is_reused_and_a_half_made_one_is_not(requirements: Path) -> None:
    whole = environment(requirements)
    version = [str(whole.python), "-c", "import six; print(six.__version__)"]
    assert subprocess.check_output(version, text=True) == "1.16.0\n"

    (whole.folder / "finished").unlink()
    (whole.folder / "left behind").touch()
    with ThreadPoolExecutor() as executor:
        first, second = executor.map(environment, [requirements] * 2)
    assert first == second == whole
    assert not (whole.folder / "left behind").exists()

    (whole.folder / "kept").touch()
    assert environment(requirements) == whole
    assert (whole.folder / "kept").exists()


@pytest.mark.whole_matrix
def test_other_pins_are_another_environment(requirements: Path) -> None:
    requirements.with_name("small.txt").write_text("no-such-package-of-ours==0\n")
    with pytest.raises(Failure, match="no-such-package-of-ours"):
        environment(requirements)
    with pytest.raises(Failure):  # and what that left is not taken for an environment
        environment(requirements)


@pytest.mark.whole_matrix
def test_the_environment_of_earlier_pins_is_removed_once_nobody_uses_it(requirements: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from linux_mlx.environments import environment; "
        "print(environment(Path(sys.argv[1])).folder, flush=True); sys.stdin.readline()"
    )
    folder = Path(__file__).parents[1] / "harness"
    with subprocess.Popen(
        [sys.executable, "-c", script, requirements],
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin
        assert other.stdout
        earlier = Path(other.stdout.readline().strip())
        requirements.with_name("small.txt").write_text("six==1.17.0\n")
        first = environment(requirements)
        assert (earlier / "finished").exists()  # the other process may yet use it
        other.stdin.close()
    unlike = first.folder.with_name(f"{requirements.stem}-of-another-file-0123456789ab")
    unlike.mkdir()
    assert environment(requirements) == first
    assert not earlier.exists()
    assert unlike.exists()
    assert (first.folder / "finished").exists()


def test_a_command_ends_with_all_that_it_started(tmp_path: Path) -> None:
    stubborn = "trap '' TERM; sleep 600 & echo up; exec sleep 600"
    with started(["sh", "-c", f"({stubborn}) & wait"], variables={}, log=tmp_path / "log") as shell:
        while "up" not in (tmp_path / "log").read_text():
            time.sleep(0.05)
        assert len(members(shell.pid)) >= 3
    assert members(shell.pid) == []


@pytest.mark.whole_matrix
@pytest.mark.parametrize(
    ("settings", "says"),
    [({}, "Installed 1 package"), ({"UV_CONFIG_FILE": "none.toml"}, "Successfully installed")],
    ids=["by uv", "by pip where uv fails"],
)
def test_packages_come_from_where_the_user_s_pip_takes_them(
    requirements: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], says: str
) -> None:
    wheels = requirements.parent / "wheels"
    wheels.mkdir()
    put_wheel(wheels, "py3-none-any")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{os.environ.get('PIP_FIND_LINKS', '')} {wheels}".strip())
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    requirements.with_name("small.txt").write_text("ours-alone==1.0\n")
    built = environment(requirements)
    subprocess.run([built.python, "-c", "import ours_alone"], check=True)
    assert says in (built.folder / "build.log").read_text()


@pytest.mark.whole_matrix
@pytest.mark.parametrize("settings", [{}, {"UV_CONFIG_FILE": "none.toml"}], ids=["uv", "pip"])
def test_an_extra_index_does_not_hide_the_wheel_for_this_platform(
    requirements: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    environment(requirements)  # and with it that of uv, from the user's own index
    native = f"py3-none-manylinux_2_17_{platform.machine()}"
    indexes = [requirements.parent / "main", requirements.parent / "extra"]
    for index, tag in zip(indexes, (native, "py3-none-any"), strict=True):
        page = index / "ours-alone" / "index.html"
        page.parent.mkdir(parents=True)
        name = put_wheel(page.parent, tag)
        page.write_text(f'<!DOCTYPE html><html><body><a href="{name}">{name}</a></body></html>')
    for variable, index in zip(("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"), indexes, strict=True):
        monkeypatch.setenv(variable, index.as_uri())
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    requirements.with_name("small.txt").write_text("ours-alone==1.0\n")
    built = environment(requirements)
    installed = subprocess.run(
        [built.python, "-c", "import ours_alone; print(ours_alone.TAG)"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert installed.stdout.strip() == native


def put_wheel(folder: Path, tag: str) -> str:
    """Put a wheel of the package `ours-alone`, whose module knows the tag, into a folder."""
    name, about = f"ours_alone-1.0-{tag}.whl", "ours_alone-1.0.dist-info"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr("ours_alone.py", f"TAG = {tag!r}\n")
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: ours-alone\nVersion: 1.0\n"
        )
        wheel.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        wheel.writestr(f"{about}/RECORD", "")
    return name
