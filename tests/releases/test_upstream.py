"""The command that plays somebody else's tests on a release, on a small folder of tests."""

from __future__ import annotations

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


def test_what_differs_is_named_and_the_rest_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "test_some.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "test_broken.py").write_text("import no_such_package\n", encoding="utf-8")
    assert upstream.main([str(tmp_path), RELEASE]) == 1
    head, *differing = capsys.readouterr().out.splitlines()
    assert head.startswith(
        f"{RELEASE}, CPU: 7 tests run, 2 passed, 3 fail in stock too, 1 unsteady, 1 differ; "
    )
    assert "; 0 patches live" not in head
    said = (tmp_path / "below" / "said").read_text(encoding="utf-8").splitlines()
    assert said[4:] == ["off begins", "off ends", "on begins", "on ends"]  # not at once
    assert differing == ["  below/test_some.py::test_differs: off passed, on failed"]


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
        ("import pytest\ndef test_ends(): pytest.exit('')\n", RELEASE, "pytest ended with "),
        ("def test_passes(): pass\n", "0.5.8", "it is not known with which transformers"),
    ],
)
def test_a_folder_without_tests_to_play_ends_with_2_and_one_sentence(
    text: str | None, release: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text:
        (tmp_path / "test_some.py").write_text(text, encoding="utf-8")
    assert upstream.main([str(tmp_path), release]) == 2
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if line.startswith("upstream: ")]
    assert len(lines) == 1
    assert why in lines[0]
    assert not said.out


def test_counts_kept_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / upstream.RESULTS).parent.mkdir(parents=True)
    differing = {"test_a.py::test_b": ("passed", "failed")}
    first = found(differing=differing, live=["mla.a", "mla.b"], ran=["mla.b"])
    upstream.keep(tmp_path, [first, found(release="0.5.18")])
    page = upstream.page(tmp_path)
    assert "| 0.5.17 | CPU | 3,021 of 3,022 | 7 | 4 | 2 | 1 | 0 | 1 | 2 | 1 |" in page
    assert "Differs: `test_a.py::test_b`, off passed, on failed." in page
    assert "Ran: `mla.b`. Live beside them: `mla.a`." in page
    upstream.keep(tmp_path, [found()])
    assert "Differs" not in upstream.page(tmp_path)
    assert upstream.page(tmp_path).count("| CPU |") == 2


def found(release: str = RELEASE, **more: object) -> upstream.Found:
    counts = {"run": 7, "passed": 4, "failed": 2, "skipped": 1, "equal": 3021, "files": 3022}
    empty: dict[str, object] = {"unsteady": [], "differing": {}, "live": [], "ran": []}
    of = {"kind": "CPU", "commit": "", "project": "", "date": "2026-11-24"}
    return upstream.Found(release=release, **{**counts, **empty, **of, **more})  # type: ignore[arg-type]
