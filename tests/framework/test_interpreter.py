"""The Python of a command: found without running it, and asked whether a server gets patches."""

import os
import sys
import venv
from pathlib import Path

import pytest
from throwaway import REPOSITORY, Throwaway, distribution

from sglang_perf_patches.cli import interpreter

RUN = [sys.executable, "-m", "sglang_perf_patches", "run"]
SERVER = ["-m", "sglang.launch_server", "--model-path", "M"]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python3 -u -I -m sglang.launch_server", "-I"),
        ("python3 -sE serve.py", "-sE"),
        ("env -u A B=1 python3 -S -c pass", "-S"),
        ("python3 -Im sglang.launch_server", "-I"),
        ("python3 -s -u -W error -X dev serve.py -I", ""),
        ("sh -c python3", ""),
        ("env -S python3", ""),
        ("env", ""),
    ],
)
def test_an_option_that_cuts_off_what_run_sets(command: str, found: str) -> None:
    assert interpreter.isolating_flag(command.split()) == found


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of its own whose site-packages has a throwaway sglang with a plugin loader."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "venv", symlinks=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    package = Throwaway.write(folder)
    package.lend_plugin_loader("0.5.23")
    (package.site / "sglang").rename(site / "sglang")
    return folder / "venv"


def why(elsewhere: Path, *paths: Path, words: tuple[str, ...] = ("",), **more: str) -> str:
    """What keeps patches out of a server in that Python, with some folders on its path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG")}
    kept |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), **more}
    *prefix, options = words
    python = [str(elsewhere / "bin" / "python"), *options.split()]
    return interpreter.obstacle([*prefix, *python, *SERVER], kept)


def test_a_python_says_what_keeps_patches_out(elsewhere: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"  # REPOSITORY's has the metadata of an editable install
    source.mkdir()
    (source / "sglang_perf_patches").symlink_to(REPOSITORY / "src" / "sglang_perf_patches")
    entry = "perf_patches = sglang_perf_patches.plugin:load"
    installed = distribution(tmp_path / "ours", "sglang-perf-patches", entry)
    assert "can't import sglang_perf_patches: install" in why(elsewhere)
    assert "No entry point perf_patches is installed" in why(elsewhere, source)
    assert why(elsewhere, source, installed) == ""
    for allowed, is_refused in (("other", True), (" , ", True), ("x, perf_patches", False)):
        said = why(elsewhere, source, installed, SGLANG_PLUGINS=allowed)
        assert said.startswith("SGLANG_PLUGINS does not name perf_patches") == is_refused


def test_run_reaches_no_python_that_ignores_its_environment(elsewhere: Path) -> None:
    (site,) = elsewhere.glob("lib/python*/site-packages")
    (site / "ours.pth").write_text(f"{REPOSITORY / 'src'}\n")  # in it also with -I
    loader = site / "sglang" / "srt" / "plugins" / "__init__.py"
    text = loader.read_text()
    loader.unlink()
    try:
        assert "loads no plugins: " in why(elsewhere)
        assert why(elsewhere, site, words=(*RUN, "")) == ""  # on the path, `run` sees sglang
        said = why(elsewhere, site, words=(*RUN, "-I"))
        assert said.endswith(" -I keeps `sglang-perf-patches run` out.")
    finally:
        loader.write_text(text)
        (site / "ours.pth").unlink()


def test_run_names_an_option_that_keeps_it_out(throwaway: Throwaway) -> None:
    isolated = (*RUN, sys.executable, "-I", "-c", "print('ran')")
    done = throwaway.execute(*isolated)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "gets no patches: remove -I" in done.stderr
    strict = throwaway.execute(*isolated, SGLANG_PERF_PATCHES_STRICT="1")
    assert (strict.returncode, strict.stdout) == (1, "")
    off = throwaway.execute(*isolated, SGLANG_PERF_PATCHES="none")
    assert (off.stdout, off.stderr) == ("ran\n", "")


def test_run_says_that_it_passes_by_the_filter(throwaway: Throwaway) -> None:
    throwaway.lend_plugin_loader("0.5.23")
    started = (*RUN, sys.executable, "-c", "")
    assert throwaway.execute(*started).stderr == ""
    done = throwaway.execute(*started, SGLANG_PLUGINS="other")
    assert "`run` activates its patches all the same" in done.stderr
    assert done.returncode == 0
