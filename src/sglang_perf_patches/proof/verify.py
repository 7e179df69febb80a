"""``verify``: run the cases of the patches that apply to the installed sglang, on this machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from .. import worker
from ..judge.verdict import Verdict
from . import Case, Device, cases

Word = Literal["equal", "different", "failed", "skipped"]

ON = {
    "cpu": "the CPU with Triton's interpreter",
    "cuda": "the GPU with the release's kernels",
    "mlx": "MLX's device",
}


@dataclass(frozen=True)
class Outcome:
    """The result of one case, of the part of it that can't run here, or of a patch without a case.

    Attributes:
        patch: its id.
        word: ``equal`` bit by bit, ``different``, ``failed`` or ``skipped``.
        reason: what was equal, how it differs, or why it was skipped; one sentence.
        device: where it ran, None if it did not.
        compared: how many comparisons were equal.
        seconds: how long it took.
        traceback: if anything but a difference ended it.
    """

    patch: str
    word: Word
    reason: str
    device: Device | None = None
    compared: int = 0
    seconds: float = 0.0
    traceback: str = ""


@dataclass(frozen=True)
class Plan:
    """What there is to compare here.

    Attributes:
        skipped: what can't be compared, and why.
        cases: what can, in the order in which it runs: by set and device, then as judged.
    """

    skipped: tuple[Outcome, ...]
    cases: tuple[Case, ...]


def plan(judged: Sequence[Verdict]) -> Plan:
    """Sort out what can be compared with stock on this machine.

    Args:
        judged: verdicts on the installed tree.
    """
    skipped: list[Outcome] = []
    chosen: list[Case] = []
    for verdict in judged:
        patch_id = verdict.patch.id
        if verdict.word != "applies":
            skipped.append(Outcome(patch_id, "skipped", f"{verdict.word}: {verdict.reason}"))
            continue
        declared = [case for case in cases(verdict.patch.set) if case.patch == patch_id]
        if not declared:
            skipped.append(Outcome(patch_id, "skipped", "there is no case for it"))
        for case in declared:
            lacking = [name for name in case.needs if not _is_installed(name)]
            if lacking:
                reason = f"it needs {', '.join(lacking)}: not installed here"
                skipped.append(Outcome(patch_id, "skipped", reason))
            else:
                chosen.append(case)
    chosen.sort(key=_process)  # stable: within a process the order of `judged`
    return Plan(tuple(skipped), tuple(chosen))


def verify(cases: Sequence[Case], *, limit_s: float) -> Iterator[Outcome]:
    """Compare with stock, case by case.

    Args:
        cases: of a `plan`.
        limit_s: seconds that the cases of one set on one device may take.
    """
    for _, together in groupby(cases, key=_process):
        yield from _in_worker(list(together), limit_s)


def exit_code(outcomes: Iterable[Outcome], in_full: Iterable[str]) -> int:
    """1 where something differs or failed, nothing or not all that was named was compared."""
    words: dict[str, set[str]] = {}
    for outcome in outcomes:
        words.setdefault(outcome.patch, set()).add(outcome.word)
    if not any("equal" in words_of for words_of in words.values()):
        return 1
    is_bad = any(words_of & {"different", "failed"} for words_of in words.values())
    return 1 if is_bad or any("equal" not in words.get(patch_id, ()) for patch_id in in_full) else 0


def _process(case: Case) -> tuple[str, str]:
    return case.patch.partition(".")[0], case.device


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _in_worker(together: Sequence[Case], limit_s: float) -> Iterator[Outcome]:
    """Run cases that go together in their own process, away from other sets' stand-ins."""
    waiting = list(together)
    words = [together[0].device, *(case.patch for case in together)]
    with worker.Child(f"{__package__}.worker", words, limit_s=limit_s) as child:
        for data in child:
            case = next(case for case in waiting if case.patch == data["patch"])
            waiting.remove(case)
            yield from _outcomes(case, data)
        why = child.why_it_ended()
    for case in waiting:
        yield Outcome(case.patch, "failed", why, case.device)


def _outcomes(case: Case, data: dict[str, Any]) -> Iterator[Outcome]:
    """A case's outcome; two where a part of it was equal and this machine can't play the rest."""
    if data.get("others"):
        yield _outcome(case, {"compared": data["others"], "seconds": data["seconds"]})
    yield _outcome(case, data)


def _outcome(case: Case, data: dict[str, Any]) -> Outcome:
    word: Word
    if "compared" in data:
        word, reason = "equal", case.what
    elif "different" in data:
        word, reason = "different", data["different"]
    elif "missing" in data:
        word, reason = "skipped", data["missing"]
    else:
        word, reason = "failed", f"its case ended with {data['failed'].strip().splitlines()[-1]}"
    compared, traceback = data.get("compared", 0), data.get("failed", "")
    return Outcome(case.patch, word, reason, case.device, compared, data["seconds"], traceback)
