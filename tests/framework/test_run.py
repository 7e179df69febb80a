"""``sglang-perf-patches run``: any release, every Python below, writes nothing, always starts.

And the Python of a command: found without running it, and asked whether a server gets patches.
"""

import ast
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from throwaway import NO_SGLANG, REPOSITORY, Throwaway, change, distribution, strictly

from sglang_perf_patches import bootstrap
from sglang_perf_patches.cli import interpreter

RUN = (sys.executable, "-m", "sglang_perf_patches", "run")
SERVER = ("-m", "sglang.launch_server", "--model-path", "M")

TREE = """
import multiprocessing, subprocess, sys

def grandchild(queue):
    import sglang.srt.a as a
    queue.put(a.Worker().step(1))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=grandchild, args=(queue,))
    process.start()
    print("spawned", queue.get(timeout=600))
    process.join()
    child = "import sglang.srt.a as a; print('step', a.Worker().step(1))"
    print(subprocess.check_output([sys.executable, "-c", child], text=True))
"""


def under_run(
    throwaway: Throwaway, script: str, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    return throwaway.process(script, *RUN, sys.executable, **variables)


def use_throwaway_sets(throwaway: Throwaway) -> None:
    """Replace the real sets with throwaway ones in every process, before any activation."""
    throwaway.put("sitecustomize.py", "import throwaway_patches as t\nt.use(t.STEP, t.HELPER)\n")


def test_a_child_is_patched_and_spawned_ones_too(throwaway: Throwaway) -> None:
    use_throwaway_sets(throwaway)
    done = throwaway.execute(*RUN, sys.executable, throwaway.put("tree.py", TREE))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["spawned", "102", "step", "102"]


def test_an_existing_sitecustomize_still_runs(throwaway: Throwaway) -> None:
    throwaway.put("sitecustomize.py", "import sys\nsys.theirs_ran = __name__, __file__\n")
    script = "import sys, sitecustomize; print(*sys.theirs_ran, sitecustomize.__file__)"
    done = under_run(throwaway, script)
    expected = str(throwaway.site / "sitecustomize.py")
    assert done.stdout.split() == ["sitecustomize", expected, expected], done.stderr


def test_what_every_python_executes_has_a_syntax_that_every_python_reads() -> None:
    source = (bootstrap.FOLDER / "sitecustomize.py").read_text(encoding="ascii")
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, ast.JoinedStr | ast.AnnAssign | ast.NamedExpr)
        assert getattr(node, "annotation", None) is None
        assert getattr(node, "returns", None) is None
        assert not isinstance(node, ast.ImportFrom) or node.module != "__future__"
        assert not isinstance(node, ast.Name) or node.id != "print"
        assert not getattr(node, "kwonlyargs", None)


OLD = sorted((Path.home() / ".pyenv" / "versions").glob("[23].[0-9].*/bin/python"))


@pytest.mark.parametrize("python", OLD, ids=lambda path: path.parts[-3])
def test_an_older_python_says_nothing(throwaway: Throwaway, python: Path) -> None:
    throwaway.put("sitecustomize.py", "import sys\nsys.theirs_ran = 1\n")
    script = "import sys; sys.stdout.write(str(sys.theirs_ran) + str(len(sys.meta_path)))"
    search = os.pathsep.join([str(bootstrap.FOLDER), str(throwaway.site)])
    environment = {"PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([python, "-c", script], env=environment, capture_output=True, text=True)
    alone = [python, "-c", "import sys; sys.stdout.write(str(len(sys.meta_path)))"]
    finders = subprocess.run(alone, capture_output=True, text=True).stdout
    assert (done.returncode, done.stdout, done.stderr) == (0, f"1{finders}", "")


def test_a_python_that_never_imports_sglang_is_untouched(throwaway: Throwaway) -> None:
    """Nor by what it takes to wait for it."""
    script = "import sys; print(*sorted(sys.modules))"
    done = under_run(throwaway, script)
    stock = throwaway.process(script)
    more = set(done.stdout.split()) - set(stock.stdout.split())
    assert more <= {
        *("__future__", "sitecustomize", "_warnings", "warnings", "importlib"),
        *("importlib._bootstrap", "importlib._bootstrap_external", "importlib.machinery"),
    }, done.stderr
    assert throwaway.records() == []


def test_sglang_that_is_looked_for_without_being_imported(throwaway: Throwaway) -> None:
    use_throwaway_sets(throwaway)
    script = """
import importlib.util, sys
assert importlib.util.find_spec("sglang").origin.endswith("sglang/__init__.py")
assert importlib.util.find_spec("sglang.srt") and importlib.util.find_spec("sgl") is None
import sglang.srt.a as a
print(a.Worker().step(1), "sglang_perf_patches.live.engine" in sys.modules)
"""
    done = under_run(throwaway, script)
    assert done.stdout == "102 True\n", done.stderr


@pytest.mark.parametrize("selection", ["none", ""])
def test_off_leaves_the_environment_alone(throwaway: Throwaway, selection: str) -> None:
    script = "import os, sys; print('wrapt' in sys.modules, os.environ['PYTHONPATH'])"
    done = under_run(throwaway, script, SGLANG_PERF_PATCHES=selection)
    assert done.stdout.strip() == f"False {throwaway.environment()['PYTHONPATH']}"


def test_the_bootstrap_is_first_and_once(throwaway: Throwaway) -> None:
    done = throwaway.process(
        "import os; print(os.environ['PYTHONPATH'])", *RUN, *RUN, sys.executable
    )
    places = done.stdout.strip().split(os.pathsep)
    assert places[0] == str(bootstrap.FOLDER)
    assert places.count(str(bootstrap.FOLDER)) == 1
    assert places[1:] == throwaway.environment()["PYTHONPATH"].split(os.pathsep)


def test_exit_codes(throwaway: Throwaway, tmp_path: Path) -> None:
    ends = (sys.executable, "-c", "raise SystemExit(7)")
    for words, code in (
        (ends, 7),
        (("--", *ends), 7),
        (("no-such-command-here",), 127),
        ((str(tmp_path),), 126),
        ((), 2),
    ):
        assert throwaway.execute(*RUN, *words).returncode == code, words
    bad = throwaway.execute(*RUN, *ends, SGLANG_PERF_PATCHES="nonsense")
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)
    missing = throwaway.execute(*RUN, *ends, PYTHONPATH=str(bootstrap.FOLDER.parents[1]))
    assert (missing.returncode, missing.stderr) == (2, f"{NO_SGLANG}\n")


def test_strict_judges_before_it_starts(throwaway: Throwaway) -> None:
    change(throwaway.site / "sglang")
    throwaway.put(
        "sitecustomize.py",
        "import throwaway_patches as t\n"
        "t.sets.load = lambda: (t.PatchSet('one', '', (t.STEP,), {}),)\n",
    )
    for selection, expected in (("one", (1, "", 1)), ("all", (0, "started\n", 0))):
        done = under_run(throwaway, "print('started')", **strictly(selection))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == expected


def test_strict_below_run_ends_the_process_with_one_line(throwaway: Throwaway) -> None:
    throwaway.put(
        "sitecustomize.py",
        "import throwaway_patches as t\n"
        "bad = t.declare('one.bad', install='breaks', targets=(f'{t.A}:helper',))\n"
        "t.use(bad)\n"
        "import sys\n"
        "sys.modules.pop('sglang', None)\n",
    )
    throwaway.put("sglang/__init__.py", "import sglang.srt.a, sglang.srt.b\n")
    done = under_run(throwaway, "import sglang\nprint('served')", **strictly("one"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "one.bad is failed" in done.stderr


def test_the_interpreter_starts_whatever_is_wrong(throwaway: Throwaway) -> None:
    done = throwaway.process(
        "import sglang; print('served')",
        PYTHONPATH=os.pathsep.join([str(bootstrap.FOLDER), str(throwaway.site)]),
        SGLANG_PERF_PATCHES="nonsense",
    )
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("sglang-perf-patches: no patch is applied: ") == 1


@pytest.mark.parametrize(("strict", "code"), [("1", 1), ("0", 0)])
def test_a_python_without_the_project_says_so(throwaway: Throwaway, strict: str, code: int) -> None:
    """What can't be patched does not pass for a patched server; nor does any other process."""
    search = os.pathsep.join([str(bootstrap.FOLDER), str(throwaway.site)])
    throwaway.put("sglang_perf_patches.py", "raise ImportError('it is being replaced')\n")
    for statement, expected in (("import sglang", code), ("import json", 0)):
        done = throwaway.process(
            f"{statement}; print('served')", PYTHONPATH=search, SGLANG_PERF_PATCHES_STRICT=strict
        )
        line = "sglang-perf-patches: no patch is applied: it is being replaced\n"
        assert (done.returncode, done.stdout) == (expected, "" if expected else "served\n")
        assert done.stderr == (line if "sglang" in statement else "")


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
