"""``verify``: run the cases of the patches that apply to the installed sglang, on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from ..judge.verdict import Verdict
from . import Case, Device, cases

Word = Literal["equal", "different", "failed", "skipped"]

ON = {
    "cpu": "the CPU, Triton's interpreter",
    "cuda": "the GPU, the release's kernels",
    "mlx": "mlx's device",
}


@dataclass(frozen=True)
class Outcome:
    """What came of one case, or of a patch that has none here.

    Attributes:
        patch: its id.
        word: ``equal`` bit by bit, ``different``, ``failed`` or ``skipped``.
        reason: what was equal, where it differs, or why it was skipped; one sentence.
        device: where it ran, None where it did not.
        compared: how many comparisons were equal.
        seconds: how long it took.
    """

    patch: str
    word: Word
    reason: str
    device: Device | None = None
    compared: int = 0
    seconds: float = 0.0


def verify(judged: Sequence[Verdict], *, limit_s: float) -> Iterator[Outcome]:
    """Compare each patch that applies with stock; the outcomes in the order of `judged`.

    Args:
        judged: verdicts on the installed tree.
        limit_s: seconds that the cases of one set on one device may take.
    """
    chosen: list[Case] = []
    for found in judged:
        id = found.patch.id
        if found.word != "applies":
            yield Outcome(id, "skipped", f"{found.word}: {found.reason}")
            continue
        declared = [case for case in cases(found.patch.set) if case.patch == id]
        if not declared:
            yield Outcome(id, "skipped", "there is no case for it")
        for case in declared:
            lacking = [name for name in case.needs if not _is_installed(name)]
            if lacking:
                yield Outcome(id, "skipped", f"it needs {', '.join(lacking)}: not installed here")
            else:
                chosen.append(case)
    chosen.sort(key=_process)  # stable: within a process the order of `judged`
    for _, together in groupby(chosen, key=_process):
        yield from _in_worker(list(together), limit_s)


def exit_code(outcomes: Iterable[Outcome], in_full: Iterable[str]) -> int:
    """1 where something differs or failed, or a patch named in full could not be compared."""
    words: dict[str, set[str]] = {}
    for outcome in outcomes:
        words.setdefault(outcome.patch, set()).add(outcome.word)
    is_bad = any(found & {"different", "failed"} for found in words.values())
    return 1 if is_bad or any("equal" not in words.get(id, ()) for id in in_full) else 0


def _process(case: Case) -> tuple[str, str]:
    return case.patch.partition(".")[0], case.device


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _in_worker(together: Sequence[Case], limit_s: float) -> Iterator[Outcome]:
    """Run cases that go together in a process of their own, which no other set's lends reach."""
    waiting = list(together)
    command = [sys.executable, "-W", "ignore", "-m", f"{__package__}.worker", together[0].device]
    command += [case.patch for case in together]
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            command,
            env={**os.environ, "SGLANG_PERF_PATCHES": "none"},
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        late = threading.Timer(limit_s, process.kill)
        late.start()
        try:
            for line in process.stdout or ():
                if line.startswith('{"patch"'):  # sglang and its libraries print too
                    data = json.loads(line)
                    case = next(case for case in waiting if case.patch == data["patch"])
                    waiting.remove(case)
                    yield _outcome(case, data)
            process.wait()
        finally:
            was_late = not late.is_alive()
            late.cancel()
            process.kill()
            process.wait()
        said.seek(0)
        last = said.read().strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
    why = f"no end after {limit_s:g} s" if was_late else f"its process ended: {last[0]}"
    for case in waiting:
        yield Outcome(case.patch, "failed", why, case.device)


def _outcome(case: Case, data: dict[str, Any]) -> Outcome:
    word: Word
    if "compared" in data:
        word, reason = "equal", case.what
    elif "different" in data:
        word, reason = "different", data["different"]
    elif "missing" in data:
        word, reason = "skipped", data["missing"]
    else:
        word, reason = "failed", data["failed"].strip().splitlines()[-1]
        print(data["failed"], file=sys.stderr)
    compared = data.get("compared", 0)
    return Outcome(case.patch, word, reason, case.device, compared, data["seconds"])
