"""``verify``: sort out what depends on this machine's device, and compare that with stock.

It keeps for servers that a patch equalled stock on this GPU (`verified`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from .. import gpu, verified, worker
from ..compat.verdict import Verdict
from ..model.setups import OTHER_GPU
from ..telemetry import records
from . import NEEDS, Case, Device, cases

Word = Literal["equal", "proven", "different", "failed", "skipped", "built-in", "absent", "refused"]
"""``equal`` is bit by bit, ``proven`` on any machine; the last three are verdicts."""

ON: dict[Device, str] = {"cuda": "the GPU with the release's kernels", "mlx": "MLX's device"}


@dataclass(frozen=True)
class Outcome:
    """The result of one case, of what of it can't run here, or of a patch without a case."""

    patch: str
    word: Word
    reason: str  # what was equal, how it differs, or why it was skipped; one sentence
    device: Device | None = None  # where it ran, None if it did not
    compared: int = 0  # how many comparisons were equal
    seconds: float = 0.0  # how long its checks took, without the import of sglang
    traceback: str = ""  # if anything but a difference ended it
    gpu: tuple[str, ...] = ()  # name and compute capability of the one that its process used
    needless: bool = False  # skipped, as no server on this device runs what it compares


def plan(judged: Sequence[Verdict]) -> tuple[list[Outcome], list[list[Case]]]:
    """Sort out what can be compared with stock on this machine, by verdicts on the installed tree.

    Returns:
        what needs no comparison here, or can't be compared, and why; and the cases of each process.
        A set has one process, but each file of a patch that has several has its own.
    """
    known: list[Outcome] = []
    processes: dict[str, list[Case]] = {}
    for verdict in judged:
        patch_id = verdict.patch.id
        found = cases(patch_id)
        if verdict.word != "applies":
            known.append(Outcome(patch_id, verdict.word, verdict.reason))
        elif not found:
            reason = "on exactly this code; nothing depends on this machine"
            known.append(Outcome(patch_id, "proven", reason))
        elif lacking := _lacking(found[0].device):
            known.append(Outcome(patch_id, "skipped", lacking))
        else:
            for case in found:
                process = case.module if len(found) > 1 else verdict.patch.set
                processes.setdefault(process, []).append(case)
    return known, [*processes.values()]


def verify(processes: Iterable[Sequence[Case]], *, limit_s: float) -> Iterator[Outcome]:
    """Compare with stock, case by case; all processes start at once, for `limit_s` at most."""
    with ExitStack() as stack:
        started = []
        for together in processes:
            words = [case.module for case in together]
            child = worker.Child(f"{__package__}.child", words, limit_s=limit_s)
            started.append((together, stack.enter_context(child)))
        for together, child in started:
            yield from _of_child(together, child)


def exit_code(outcomes: Iterable[Outcome], in_full: Iterable[str]) -> int:
    """1 if something differs or failed, nothing applies, or a patch named was not compared.

    A patch that upstream has needs no comparison.
    """
    words: dict[str, set[Word]] = {}
    for outcome in outcomes:
        words.setdefault(outcome.patch, set()).add(outcome.word)
    applies = any(of - {"built-in", "absent", "refused"} for of in words.values())
    if not applies and any(of != {"built-in"} for of in words.values()):
        return 1
    if any(of & {"different", "failed"} for of in words.values()):
        return 1
    good = {each for each, of in words.items() if of & {"equal", "proven", "built-in"}}
    return int(not good.issuperset(in_full))


def possible_records(judged: Sequence[Verdict]) -> dict[str, list[dict[str, Any]]]:
    """What `keep_records` may write, by patch: of those that only a record lets run here.

    Call it before the comparison, so that a record names the code that was compared.
    """
    possible = {}
    for verdict in judged:
        proven_with = verdict.patch.proven_in(verdict.variant).proven_with
        if verdict.word == "applies" and proven_with is not None and OTHER_GPU not in proven_with:
            possible[verdict.patch.id] = verified.records(verdict)
    return possible


def keep_records(
    possible: Mapping[str, list[dict[str, Any]]], outcomes: Sequence[Outcome]
) -> list[str]:
    """Write a record for each patch of which every case was equal, or is needless on this GPU.

    Returns a line for each such patch: where its record is, or why it has none.
    """
    lines = []
    for patch_id, of_patch in possible.items():
        of_it = [each for each in outcomes if each.patch == patch_id]
        gpus = {each.gpu for each in of_it}
        is_whole = all(each.word == "equal" or each.needless for each in of_it)
        if not is_whole or not any(each.compared and each.device == "cuda" for each in of_it):
            continue
        found = [each for each in of_patch if {(each["gpu"], each["capability"])} == gpus]
        try:
            if not found:
                raise OSError("the driver does not name the GPU that was used")
            place = verified.path(found[0])
            records.write(place, found[0])
            lines.append(f"{patch_id}: recorded for servers on this GPU, in {place.parent}")
        except (OSError, records.RecordError) as error:
            lines.append(f"{patch_id}: no record for servers: {error}")
    return lines


def _lacking(device: Device) -> str:
    """What a device's cases need and this machine has not; nothing if it has all."""
    if device == "cuda" and gpu.capability() is None:
        return "needs a CUDA GPU"
    lacking = [name for name in NEEDS[device] if importlib.util.find_spec(name) is None]
    return f"needs {', '.join(lacking)}, not installed here" if lacking else ""


def _of_child(together: Sequence[Case], child: worker.Child) -> Iterator[Outcome]:
    """The outcomes that a process reports of its cases, and why the others have none."""
    by_module = {case.module: case for case in together}
    heard = set()
    for data in child:
        heard.add(data["case"])
        yield _outcome(by_module[data["case"]], data)
    for case in together:
        if case.module not in heard:
            yield Outcome(case.patch, "failed", child.why_it_ended(), case.device)


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
    traceback, gpu = data.get("failed", ""), tuple(data.get("gpu") or ())
    told = {name: data[name] for name in ("compared", "seconds", "needless") if name in data}
    return Outcome(case.patch, word, reason, case.device, traceback=traceback, gpu=gpu, **told)
