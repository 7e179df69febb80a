"""One patched Engine that shows stock's code and ours by turns: what a patch does to time.

    python tests/benchmarks/rig/turns.py OUT.json SHAPE SIDES [PART …] [NAME=VALUE …]

Run it under ``python -m sglang_perf_patches run``, as README.md says.

- SHAPE: a name in ``shapes.py``, or the folder of a model with weights.
- SIDES: with commas between, beside ``stock``, which has every live patch off. ``all`` has every
  one on, ``-PATCH`` all but that one, ``PATCH+PATCH`` these alone. ``flashinfer`` and ``unwaited``
  are further sides of `mamba.gdn-prefill-graph` (``injected/gdn_graphs.py``).
- PART: names in `PARTS`; without one `USUAL`. ``prefills`` and ``decodes`` are profiles.
- NAME=VALUE: fields of ServerArgs, or of the model's configuration with ``model.`` in front. An
  empty VALUE takes an option of the shape's away.

Variables: ROUNDS (13); CELLS, the prompts of ``ttft`` ("1x130 1x519 8x512 1x4000"); BATCHES
("1 16 64"), PROMPT (256) and TOKENS (160) of ``tpot``; SAID (200), the prompts of ``tokens``;
MIXED (1000), those of ``mixed``; TOGETHER ("8x60 … 8x810"), those of ``together``.

OUT.json is rewritten after each part: ``{"options", "boot s", "said", "patches", PART: …}``. A
part that takes turns has for each cell ``{FIGURE: {SIDE: {"ms", "ratio"}}}``: quartiles of the
side's milliseconds, and of the ratios to stock in the same round.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import traces
from engine import Prompts, Replies, Server, parsed, patches_here, quartiles

ROUNDS = int(os.environ.get("ROUNDS", "13"))
CELLS = os.environ.get("CELLS", "1x130 1x519 8x512 1x4000").split()
BATCHES = tuple(map(int, os.environ.get("BATCHES", "1 16 64").split()))
PROMPT, TOKENS = int(os.environ.get("PROMPT", "256")), int(os.environ.get("TOKENS", "160"))
TOGETHER = os.environ.get("TOGETHER", "8x60 8x210 8x360 8x510 8x660 8x810").split()
SAID = int(os.environ.get("SAID", "200"))
MIXED = int(os.environ.get("MIXED", "1000"))
WARM = 2
"""Rounds before those that count: kernels compile."""
PREFIX, CACHED, ENDS = 1030, 1024, 100
"""Tokens of a prefix, those that come back from the cache, and new ones behind it: with the rest of
the prefix too few for a further state to be kept."""


class Sides:
    """The sides, and which the server shows."""

    def __init__(self, server: Server, names: Sequence[str]) -> None:
        """Raises a ValueError if a side has a patch that is not live in the server."""
        self.server = server
        self.live: list[str] = server.said["patches"]
        self.off = {name: self._off(name) for name in dict.fromkeys(["stock", *names])}

    def _off(self, name: str) -> list[str]:
        fixed = {"stock": self.live, "flashinfer": self.live, "all": [], "unwaited": []}
        if name in fixed:
            return fixed[name]
        named = name.removeprefix("-").split("+")
        if missing := set(named) - set(self.live):
            live = ", ".join(self.live) or "nothing"
            raise ValueError(f"{', '.join(sorted(missing))}: not live; live: {live}")
        return [each for each in self.live if (each in named) == name.startswith("-")]

    def show(self, name: str) -> None:
        self.server.ask("show", self.off[name], name)

    def by_turns(
        self, make: Callable[[], Prompts | Mapping[str, Prompts]], output: int
    ) -> dict[str, list[Replies]]:
        """What each side replies; `make` gives a round's prompts, for all sides or for each."""
        taken: dict[str, list[Replies]] = {name: [] for name in self.off}
        for number in range(-WARM, ROUNDS):
            prompts = make()
            for name in list(self.off)[:: 1 if number % 2 else -1]:
                self.show(name)
                mine = prompts[name] if isinstance(prompts, Mapping) else prompts
                if number >= 0:
                    taken[name].append(self.server.generate(mine, output))
        return taken

    def prefill(self, cell: str, times: int) -> None:
        for _ in range(times):
            self.server.generate(self.server.prompts(*map(int, cell.split("x"))), 1)

    def fresh(self, count: int, length: int) -> dict[str, Prompts]:
        """New prompts for each side: what one side's cache keeps is of no use to the other."""
        return {name: self.server.prompts(count, length) for name in self.off}


def compared(
    taken: Mapping[str, Sequence[Replies]], figures: Callable[[Replies], dict[str, float]]
) -> dict[str, Any]:
    """Quartiles of each figure of each side, and of its ratios to stock's."""
    results: dict[str, Any] = {}
    for name, replies in taken.items():
        for one, stock in zip(replies, taken["stock"], strict=True):
            for figure, value in figures(one).items():
                mine = results.setdefault(figure, {}).setdefault(name, {"ms": [], "ratio": []})
                mine["ms"].append(value)
                mine["ratio"].append(value / figures(stock)[figure])
    for sides in results.values():
        for each in sides.values():
            each["turns"] = [round(value, 3) for value in each["ms"]]
            each |= {name: quartiles(each[name]) for name in ("ms", "ratio")}
    cached = {tokens for all_of in taken.values() for one in all_of for tokens in one.cached}
    results["cached"] = sorted(cached)
    return results


def same(taken: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """For how many replies each side has stock's tokens, and how many tokens there are at all."""
    stock = taken["stock"]
    return {
        "different tokens": len({token for reply in stock for token in reply}),
        **{
            name: f"{sum(a == b for a, b in zip(stock, replies, strict=True))} of {len(stock)}"
            for name, replies in taken.items()
        },
    }


def flat(taken: Mapping[str, Sequence[Replies]]) -> dict[str, list[list[int]]]:
    return {name: [t for one in all_of for t in one.tokens] for name, all_of in taken.items()}


def ttft(sides: Sides) -> dict[str, Any]:
    """Until the last and the median of new prompts have their first token."""
    results = {}
    for cell in CELLS:
        count, length = map(int, cell.split("x"))
        taken = sides.by_turns(partial(sides.fresh, count, length), 1)
        results[cell] = compared(taken, Replies.figures)
        print("TTFT", cell, _ratios(results[cell]["last"]), flush=True)
    return results


def tpot(sides: Sides) -> dict[str, Any]:
    """Milliseconds per token of whole batches, prefill and all.

    Without a prefix cache all sides have the same prompts, and their tokens are compared. With one
    each has prompts of its own, since only the first side would have to compute them.
    """
    server, results = sides.server, {}
    for count in BATCHES:
        new = sides.fresh if server.has_cache else server.prompts
        taken = sides.by_turns(partial(new, count, PROMPT), TOKENS)
        each = compared(taken, lambda one: {"per token": 1e3 * one.seconds / TOKENS})
        if not server.has_cache:
            each["tokens equal"] = same(flat(taken))
        each["tokens per verify step"] = {
            name: round(count * TOKENS / of[-1].steps, 3)
            for name, of in taken.items()
            if of[-1].steps
        }
        results[str(count)] = each
        print("TPOT", count, _ratios(each["per token"]), flush=True)
    return results


def continued(sides: Sides) -> dict[str, Any]:
    """Until requests that continue a cached prefix have their first token, as in a conversation."""
    server = sides.server
    prefixes = server.prompts(64, PREFIX)
    sides.show("stock")
    for start in range(0, len(prefixes), 8):
        server.generate(prefixes[start : start + 8], 1)

    def make(count: int) -> Prompts:
        ends = server.prompts(count, ENDS)
        return [prefix + end for prefix, end in zip(prefixes, ends, strict=False)]

    results = {}
    for count in BATCHES:
        taken = sides.by_turns(partial(make, count), 1)
        each = compared(taken, Replies.figures)
        each["tokens equal"] = same(flat(taken))
        results[f"{count} x ({CACHED} cached + {PREFIX - CACHED + ENDS})"] = each
        print("CONTINUED", count, _ratios(each["last"]), flush=True)
    return results


def tokens(sides: Sides) -> dict[str, Any]:
    """Greedy tokens of many prompts and of longer ones that begin with them, and what they leave.

    Compared are also the tokens' log-probabilities, and the states or the KV at the end. One at a
    time: no race may decide which requests share a batch.
    """
    server, draw = sides.server, random.Random(5)
    lengths = [draw.choice((17, 64, 65, 300, 519, 1100, 2500)) for _ in range(SAID // 2)]
    first = [server.prompts(1, length)[0] for length in lengths]
    longer = [prompt + server.prompts(1, 130)[0] for prompt in first]
    replies: dict[str, list[list[int]]] = {}
    sums: dict[str, list[list[int]]] = {}
    logprobs: dict[str, list[list[float]]] = {}
    for name in sides.off:
        sides.show(name)
        server.flush()
        server.ask("zero")
        told = [server.generate([each], 4, return_logprob=True) for each in (*first, *longer)]
        replies[name] = [each.tokens[0] for each in told]
        logprobs[name] = [each.logprobs[0] for each in told]
        sums[name] = server.ask("sums") or []
    server.flush()
    results: dict[str, Any] = {"tokens equal": same(replies), "logprobs equal": same(logprobs)}
    for name, layers in sums.items():
        pairs = list(zip(sums["stock"], layers, strict=True))
        if pairs:
            results[name] = {
                "layers equal": f"{sum(a == b for a, b in pairs)} of {len(pairs)}",
                "slots differ": sum(x != y for a, b in pairs for x, y in zip(a, b, strict=True)),
                "slots written": sum(x != 0 for x in layers[0]),
            }
    return results


def together(sides: Sides) -> dict[str, Any]:
    """Tokens where the scheduler puts several requests into one prefill."""
    replies: dict[str, list[list[int]]] = {name: [] for name in sides.off}
    for cell in TOGETHER:
        prompts = sides.server.prompts(*map(int, cell.split("x")))
        for name in sides.off:
            sides.show(name)
            sides.server.flush()
            replies[name] += sides.server.generate(prompts, 4).tokens
    return same(replies)


def mixed(sides: Sides) -> dict[str, Any]:
    """Tokens of MIXED random requests, up to 16 at once; half of them continue an earlier one.

    Each twentieth is aborted, at a random moment. At the end stock's code shows how often its own
    tokens are others the second time: what shares a batch depends on the moment.
    """
    server = sides.server
    replies: dict[str, list[list[int]]] = {}
    cached, aborted = {}, {}
    for name in [*sides.off, "stock again"]:
        sides.show(name.removesuffix(" again"))
        server.flush()
        server.seed("mixed")
        draw, known = random.Random(7), [server.prompts(1, 64)[0]]
        replies[name], cached[name], aborted[name] = [], 0, 0
        while len(replies[name]) < MIXED:
            sent = []
            for _ in range(min(draw.randint(1, 16), MIXED - len(replies[name]))):
                more = server.prompts(1, draw.choice((1, 17, 64, 65, 90, 130, 300, 519, 1100)))[0]
                before = draw.choice(known) if draw.random() < 0.5 else []
                ends = draw.random() * 0.1 if draw.random() < 0.05 else None
                sent.append(((before + more)[:4000], ends))
            known = [*known, *(prompt for prompt, _ in sent)][-64:]
            for (_, ends), (told, tokens) in zip(sent, server.mixed(sent, 6), strict=True):
                replies[name].append([] if ends is not None else tokens)
                cached[name] += tokens != [] and told > 0
                aborted[name] += ends is not None and len(tokens) < 6
    return {"tokens equal": same(replies), "found a prefix": cached, "were aborted": aborted}


def offloaded(sides: Sides) -> dict[str, Any]:
    """Tokens after prefixes whose states come back from the host while the prefill begins.

    It needs ``enable_hierarchical_cache`` and ``max_total_tokens`` of some 40,000. The side
    ``unwaited`` leaves out the patch's wait: where its tokens are other ones, this sees the fault.
    """
    server = sides.server
    first = [server.prompts(1, 640 + 64 * number)[0] for number in range(12)]
    longer = [prompt + server.prompts(1, 130)[0] for prompt in first]
    others = [server.prompts(8, 1000) for _ in range(8)]
    replies, loads = {}, {}
    for name in sides.off:
        sides.show(name)
        server.flush()
        server.ask("zero")
        for prompt in first:
            server.generate([prompt], 1)
        time.sleep(1)
        for prompts in others:
            server.generate(prompts, 1)
        before = server.ask("loads") or 0
        replies[name] = [server.generate([prompt], 8).tokens[0] for prompt in longer]
        loads[name] = (server.ask("loads") or 0) - before
    return {"tokens equal": same(replies), "loads": loads}


def prefills(sides: Sides) -> dict[str, Any]:
    """Calls of a prefill of each side, for the first two cells, from a profile of four."""
    results: dict[str, Any] = {}
    for cell in CELLS[:2]:
        for name in sides.off:
            sides.show(name)
            sides.prefill(cell, 1)
            profile = traces.profiled(sides.server, partial(sides.prefill, cell, 4))
            results.setdefault(cell, {})[name] = traces.calls(profile, 4)
            print("PREFILLS", cell, name, json.dumps(results[cell][name])[:300], flush=True)
    return results


def decodes(sides: Sides) -> dict[str, Any]:
    """Calls of a verify step of one request, or of a token without speculation."""
    results: dict[str, Any] = {}
    for name in sides.off:
        sides.show(name)
        sides.server.generate(sides.server.prompts(1, PROMPT), 32)
        replies: list[Replies] = []
        prompt = sides.server.prompts(1, PROMPT)
        profile = traces.profiled(
            sides.server,
            lambda: replies.append(sides.server.generate(prompt, 128)),  # noqa: B023
        )
        steps = replies[0].steps or 128
        results[name] = {"steps": steps, **traces.calls(profile, steps)}
        print("DECODES", name, json.dumps(results[name])[:300], flush=True)
    return results


_PARTS = (tokens, together, ttft, tpot, continued, mixed, prefills, decodes, offloaded)
PARTS: dict[str, Callable[[Sides], dict[str, Any]]] = {part.__name__: part for part in _PARTS}
USUAL = ("tokens", "together", "ttft", "tpot", "prefills", "decodes")


def main(words: Sequence[str]) -> int:
    if len(words) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    out, shape, names, *rest = words
    parts = [word for word in rest if "=" not in word] or [*USUAL]
    if unknown := set(parts) - set(PARTS):
        print(f"turns: no part {min(unknown)!r}: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    options, model = parsed(word for word in rest if "=" in word)
    with ExitStack() as stack:
        try:
            server = Server(shape, options, model)
            stack.callback(server.close)
            results: dict[str, Any] = {"shape": shape, "options": rest, "boot s": server.boot_s}
            results["said"] = server.said
            print("READY", json.dumps(results), flush=True)
            sides = Sides(server, names.split(","))
        except ValueError as error:
            print(f"turns: {error}", file=sys.stderr)
            return 2
        results["off"] = sides.off
        for part in parts:
            began = time.monotonic()
            results[part] = PARTS[part](sides)
            results[f"{part} s"] = round(time.monotonic() - began, 1)
            results["patches"] = patches_here()
            Path(out).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(part, json.dumps(results[part])[:1000], flush=True)
    return 0


def _ratios(sides: Mapping[str, Any]) -> str:
    return json.dumps({name: each["ratio"] for name, each in sides.items() if name != "stock"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
