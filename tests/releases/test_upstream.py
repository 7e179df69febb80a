"""The command that plays somebody else's tests on a release, on a small folder of tests."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.maintain import upstream

RELEASE = "0.5.17"

TESTS = """
import os
import time
from pathlib import Path

ON = os.environ["SGLANG_PERF_PATCHES"] != "none"
SEEN = Path(__file__).with_name("seen")


def test_passes():
    os.environ["LEFT_BY_A_FILE"] = "1"
    import sglang.srt.mem_cache.swa_memory_pool
    import sglang.srt.disaggregation.decode


def test_differs():
    assert not ON


def test_fails_in_both():
    raise AssertionError


def test_ends_the_process():
    os.abort()


def test_is_unsteady():
    if ON and not SEEN.exists():
        SEEN.touch()
        raise AssertionError


def test_says_when():
    for word in ("begins", "ends"):
        with SEEN.with_name("said").open("a") as said:
            said.write(f"{'on' if ON else 'off'} {word}\\n")
        time.sleep(3)


def test_is_skipped():
    import pytest

    pytest.skip("")
"""

OF_ANOTHER_FILE = """
import os


def test_another_file_has_left_nothing():
    assert "LEFT_BY_A_FILE" not in os.environ
"""

SLOW = """
import os
import time
from pathlib import Path


def test_takes_long():
    Path(__file__).with_name(f"{os.getpid()}.pid").touch()
    time.sleep(100)
"""


@pytest.mark.parametrize("only", [pytest.param("", marks=pytest.mark.whole_matrix), "no platform"])
def test_what_differs_is_named_and_the_rest_counted(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    only: str,
) -> None:
    """The default tier plays them without a platform only, which halves eight imports of sglang."""
    # On a busy machine an import of sglang takes longer than the command lets a test take.
    monkeypatch.setattr(upstream, "TEST_S", 1200)
    monkeypatch.setattr(upstream, "SILENT_S", 1230)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "test_some.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "test_then.py").write_text(OF_ANOTHER_FILE, encoding="utf-8")
    (tmp_path / "test_broken.py").write_text("import no_such_package\n", encoding="utf-8")
    assert upstream.main([str(tmp_path), RELEASE, *(["--only", only] if only else [])]) == 1
    differs = "  below/test_some.py::test_differs: off passed, on failed"
    lines = capsys.readouterr().out.splitlines()
    kinds, differing = lines[::2], lines[1::2]
    names = [only] if only else ["CPU", "no platform"]
    # What is unsteady is so once.
    ends = (
        "3 passed, 3 fail in stock too, 1 unsteady",
        "4 passed, 3 fail in stock too, 0 unsteady",
    )
    for kind, name, counted in zip(kinds, names, ends, strict=False):
        assert kind.startswith(f"{RELEASE}, {name}: 8 tests run, {counted}, 1 differ")
    assert len(kinds) == len(names)
    assert "; 0 patches live" not in kinds[-1]
    assert differing == [differs] * len(names)
    told = (tmp_path / "below" / "said").read_text(encoding="utf-8").splitlines()
    assert told[4:8] == ["off begins", "off ends", "on begins", "on ends"]  # not at once


def test_a_folder_that_does_not_differ_ends_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_some.py").write_text("def test_passes(): pass\n", encoding="utf-8")
    assert upstream.main([str(tmp_path), RELEASE]) == 0
    assert capsys.readouterr().out.startswith(f"{RELEASE}, CPU: 1 tests run, 1 passed, 0 fail ")


@pytest.mark.parametrize(
    ("text", "release", "why"),
    [
        (None, RELEASE, "holds no tests: no file is named test_*.py"),
        ("def test_of(:\n", RELEASE, "none of the tests in"),
        ("import os\nos._exit(3)\n", RELEASE, "pytest ended with 3"),
        ("def test_passes(): pass\n", "0.5.8", "it is not known with which transformers"),
    ],
)
def test_a_folder_without_tests_to_play_ends_with_2_and_one_sentence(
    text: str | None, release: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text:
        (tmp_path / "test_some.py").write_text(text, encoding="utf-8")
    assert upstream.main([str(tmp_path), release]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("upstream: ")]
    assert len(lines) == 1
    assert why in lines[0]
    assert not captured.out


def test_only_what_is_named_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_some.py").write_text("def test_passes(): pass\n", encoding="utf-8")
    assert upstream.main([str(tmp_path), RELEASE, "--only", "MLX"]) == 2
    assert "are played with MLX" in capsys.readouterr().err
    assert upstream.main([str(tmp_path), RELEASE, "--only", "no platform"]) == 0
    assert capsys.readouterr().out.count(f"{RELEASE}, ") == 1


def test_what_it_started_ends_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW, encoding="utf-8")
    words = [sys.executable, "-m", "tests.maintain.upstream", str(tmp_path), RELEASE]
    command = subprocess.Popen(words, cwd=upstream.ROOT)
    try:
        pids = until_playing(tmp_path, command, len(upstream.SIDES))
        command.terminate()
        assert command.wait(300) == 128 + signal.SIGTERM
        assert not [pid for pid in pids if is_running(pid)]
    finally:
        command.kill()


def is_running(pid: str) -> bool:
    """Whether a process is there and has not ended; who inherited it may read its end later."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_playing(folder: Path, command: subprocess.Popen[bytes], count: int) -> list[str]:
    """The processes that play a test of `SLOW`, once there are so many."""
    while command.poll() is None:
        pids = [file.stem for file in folder.glob("*.pid")]
        if len(pids) == count:
            return pids
        time.sleep(0.2)
    raise AssertionError(f"the command ended with {command.returncode}")


def test_counts_kept_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / upstream.RESULTS).parent.mkdir(parents=True)
    differing = {"test_a.py::test_b": ("passed", "failed")}
    first = found(differing=differing, live={"mla.a": 3, "mla.b": 1}, ran={"mla.b": 1})
    upstream.keep(tmp_path, [first, found(release="0.5.18")])
    page = upstream.page(tmp_path)
    assert "| 0.5.17 | CPU | 3,021 of 3,022 | 7 | 4 | 2 | 1 | 0 | 1 | 2 | 1 |" in page
    assert "Differs: `test_a.py::test_b`, off passed, on failed." in page
    assert "Ran in files: `mla.b` 1. Live in files: `mla.a` 3, `mla.b` 1." in page
    upstream.keep(tmp_path, [found()])
    assert "Differs" not in upstream.page(tmp_path)
    assert upstream.page(tmp_path).count("| CPU |") == 2


def found(release: str = RELEASE, **more: object) -> upstream.Found:
    counts = {"run": 7, "passed": 4, "failed": 2, "skipped": 1, "equal": 3021, "files": 3022}
    empty: dict[str, object] = {"unsteady": [], "differing": {}, "live": {}, "ran": {}}
    of = {"kind": "CPU", "commit": "", "project": "", "date": "2026-11-24"}
    return upstream.Found(release=release, **{**counts, **empty, **of, **more})  # type: ignore[arg-type]
