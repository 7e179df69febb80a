"""Where the time of a first token goes, step by step through the processes of an Engine.

    python tests/benchmarks/rig/timeline.py OUT.json SHAPE [NAME=VALUE …]

SHAPE and NAME=VALUE are as in ``turns.py``. Each cell is streamed ROUNDS times (24), every other
time with the steps marked from within (``inside/marks.py``): so the result also says what marking
costs. Steps of a cell with several requests are those of the first one.

Variables: CELLS ("1x130 1x519"), TOKENS of a reply (1), ROUNDS. Where several Engines boot at once,
START_FILE is as in ``turns.py``.

OUT.json: ``{CELL: {"plain", "marked": quartiles of the milliseconds to the last first token,
"steps": [[milliseconds since it was sent, STEP], …]}}``, medians, in their order.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from engine import Server, parsed, quartiles

CELLS = os.environ.get("CELLS", "1x130 1x519").split()
ROUNDS, TOKENS = int(os.environ.get("ROUNDS", "24")), int(os.environ.get("TOKENS", "1"))
WARM = 4


async def first_token(engine: Any, prompt: list[int]) -> float:
    """Stream one request; the milliseconds until its first token."""
    parameters = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    began, first = time.monotonic(), None
    async for _ in await engine.async_generate(
        input_ids=prompt, sampling_params=parameters, stream=True
    ):
        first = first or time.monotonic()
    assert first is not None
    return 1e3 * (first - began)


async def all_first_tokens(engine: Any, prompts: Sequence[list[int]]) -> float:
    """Stream requests at once; the milliseconds until the last one has its first token."""
    return max(await asyncio.gather(*(first_token(engine, prompt) for prompt in prompts)))


def measured(server: Server, marks: Path, cell: str) -> dict[str, Any]:
    """One cell, and its steps."""
    run = server.engine.loop.run_until_complete
    on = marks.with_name(f"{marks.name}.on")
    taken: dict[bool, list[float]] = {False: [], True: []}
    windows: list[tuple[int, int]] = []
    for number in range(ROUNDS + WARM):
        marked = bool(number % 2)
        on.touch() if marked else on.unlink(missing_ok=True)
        run(asyncio.sleep(0.08))  # until all have looked
        prompts = server.prompts(*map(int, cell.split("x")))
        began = time.monotonic_ns()
        ms = run(all_first_tokens(server.engine, prompts))
        if number >= WARM:
            taken[marked].append(ms)
            windows += [(began, time.monotonic_ns())] if marked else []
    on.unlink(missing_ok=True)
    run(all_first_tokens(server.engine, server.prompts(1, 8)))  # all write what they have
    run(asyncio.sleep(0.3))
    return {
        "plain": quartiles(taken[False]),
        "marked": quartiles(taken[True]),
        "steps": steps(marks.read_text(encoding="ascii").splitlines(), windows),
    }


def steps(lines: Iterable[str], windows: Sequence[tuple[int, int]]) -> list[tuple[float, str]]:
    """Median milliseconds since a window began, of each step that most windows have.

    Args:
        lines: ``NANOSECONDS PROCESS STEP``, in any order.
        windows: when each began and ended, in nanoseconds of the same clock.
    """
    events = sorted((int(at), step) for at, _, step in map(str.split, lines))
    times: dict[str, list[float]] = defaultdict(list)
    for began, ended in windows:
        numbers: Counter[str] = Counter()
        for at, step in events:
            if began <= at <= ended:
                numbers[step] += 1
                times[f"{step} {numbers[step]}"].append((at - began) / 1e6)
    medians = {
        step: statistics.median(each)
        for step, each in times.items()
        if len(each) > len(windows) / 2
    }
    return sorted((round(ms, 2), step) for step, ms in medians.items())


def main(words: Sequence[str]) -> int:
    """Boot, measure; 2 on bad usage."""
    if len(words) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    out, shape, *rest = words
    marks = Path(tempfile.mkdtemp(prefix="marks-")) / "marks"
    marks.touch()
    os.environ["MARKS"] = str(marks)
    sys.path.append(str(Path(__file__).with_name("inside")))
    importlib.import_module("marks").watch()  # the tokenizer is in this process
    server = Server(shape, *parsed(rest))
    try:
        print("READY", server.boot_s, flush=True)
        while os.environ.get("START_FILE") and not Path(os.environ["START_FILE"]).exists():
            time.sleep(0.05)
        results = {}
        for cell in CELLS:
            results[cell] = measured(server, marks, cell)
            Path(out).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(cell, json.dumps(results[cell]), flush=True)
    finally:
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
