"""One Engine of a plan of `fleet`, in a process of its own that measures what it is told to."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import traces
from engine import Server, memory, parsed, patches_here, quartiles

PROMPT, TOKENS = int(os.environ.get("PROMPT", "256")), int(os.environ.get("TOKENS", "256"))
SETTLE = int(os.environ.get("SETTLE", "0"))
PROFILED: dict[str, Any] = {"activities": ["GPU"], "with_stack": False, "record_shapes": False}
"""What a profile holds: also the calls of the runtime, but none of PyTorch's, which cost time."""
STEPS = 20
"""Steps of a batch that are profiled."""


def cells() -> dict[str, tuple[int, int, int]]:
    """What is measured, by name: requests, tokens of a prompt, and tokens of a reply."""
    first = os.environ.get("CELLS", "1x130 1x519 8x512 1x4000").split()
    pairs = {name: tuple(map(int, name.split("x"))) for name in first}
    by_name = {name: (count, length, 1) for name, (count, length) in pairs.items()}
    for count in map(int, os.environ.get("BATCHES", "").split()):
        by_name[f"{count} requests, {TOKENS} tokens"] = (count, PROMPT, TOKENS)
    return by_name


class Seat:
    """One Engine of a plan, in this process, which does as told."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        options, model = parsed(plan.get("options", ()))
        self.server = Server(plan["shape"], options, model, asks=False)
        self._ranks = int(options.get("tp_size") or 1)
        for count, length, _ in cells().values():
            self.time(count, length, 2, 8000)

    def time(self, count: int, length: int, output: int, number: int) -> dict[str, Any]:
        """Milliseconds until new prompts have their first token, or of each token; the tokens."""
        for settling in range(SETTLE):  # a process that was stopped is slow at first
            self.server.seed(f"{count} {length} {number} settling {settling}")
            self.server.generate(self.server.prompts(count, length), 1)
        self.server.seed(f"{count} {length} {number}")
        replies = self.server.generate(self.server.prompts(count, length), output)
        return {
            "ms": 1e3 * replies.seconds / output,
            "tokens": [json.dumps(each) for each in replies.tokens],
            "different": len({token for each in replies.tokens for token in each}),
            "tokens per step": round(output * count / replies.steps, 3) if replies.steps else None,
            "cached": max(replies.cached),
            "patches": patches_here(),
        }

    def states(self, count: int) -> dict[str, Any]:
        """Tokens of prompts and of longer ones that begin with them, one at a time; the states."""
        server = self.server
        server.seed("states")
        lengths = [(17, 64, 65, 130, 300, 519, 1100, 1500)[number % 8] for number in range(count)]
        first = [server.prompts(1, length)[0] for length in lengths]
        longer = [prompt + server.prompts(1, 130)[0] for prompt in first]
        server.flush()
        server.engine.collective_rpc("rig_zero")
        replies = [server.generate([each], 4) for each in (*first, *longer)]
        return {
            "tokens": [reply.tokens[0] for reply in replies],
            "cached": [reply.cached[0] for reply in replies],
            "states": server.sums(),
        }

    def bits(self, count: int) -> dict[str, Any]:
        """Tokens and log-probabilities of prompts, twice: single, joint, with a cached prefix."""
        server = self.server
        server.seed("bits")
        lengths = [(17, 64, 130, 300, 519, 1100, 1500)[number % 7] for number in range(count)]
        first = [server.prompts(1, length) for length in lengths]
        longer = [[prompt + server.prompts(1, 130)[0]] for (prompt,) in first]
        sent = [*first, server.prompts(8, 512), server.prompts(3, 300), *longer]
        tokens: list[list[list[int]]] = []
        logprobs: list[list[list[float]]] = []
        for _ in range(2):
            server.flush()
            replies = [server.generate(each, 8, return_logprob=True) for each in sent]
            tokens.append([one for reply in replies for one in reply.tokens])
            logprobs.append([one for reply in replies for one in reply.logprobs])
        return {"tokens": tokens, "logprobs": logprobs}

    def prefills(self, count: int, length: int) -> dict[str, Any]:
        """The GPUs' time of a prefill, of each rank, from a profile of three."""
        profile = traces.profiled(
            self.server,
            lambda: [self.time(count, length, 1, 700 + n) for n in range(3)],
            self._ranks,
            **PROFILED,
        )
        return traces.of_ranks(profile, 3)

    def decodes(self, count: int, length: int) -> dict[str, Any]:
        """Milliseconds of a decode or verify step of a batch; of each rank what its GPU does."""
        server = self.server
        ms, lengths = [], []
        for number in range(5):
            taken = []
            for output in (16, 112):
                server.seed(f"decodes {count} {number} {output}")
                replies = server.generate(server.prompts(count, length), output)
                taken.append((replies.seconds, replies.steps / count or output))
            (early, few), (late, many) = taken
            ms.append(1e3 * (late - early) / (many - few))
            lengths.append(96 / (many - few))
        folder = Path(tempfile.mkdtemp(dir=server.folder))
        prompts, after_s = server.prompts(count, length), 0.3 + count / 100
        server.profile_decodes(prompts, 400, folder, after_s=after_s, num_steps=STEPS, **PROFILED)
        return {
            "step ms": quartiles(ms[1:]),
            "tokens a step": round(sum(lengths) / len(lengths), 2),
            **traces.of_ranks(traces.written(folder, self._ranks), STEPS),
        }


def seat(replies: str, plan: Mapping[str, Any]) -> None:
    """Boot an Engine, then do what each line of the input asks; `replies` is for `fleet.Boot`."""
    with open(replies, "w", encoding="utf-8") as out:

        def say(found: Any) -> None:
            out.write(json.dumps(found) + "\n")
            out.flush()

        try:
            mine = Seat(plan)
        except BaseException:
            say({"error": traceback.format_exc()[-2000:]})
            raise
        say({"boot s": mine.server.boot_s, "GPU MiB": memory()})
        for line in sys.stdin:
            what, *details = json.loads(line)
            try:
                say(getattr(mine, what)(*details))
            except Exception:
                say({"error": traceback.format_exc()[-2000:]})
        mine.server.close()
