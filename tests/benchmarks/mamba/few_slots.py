"""A hybrid model's Engines with few slots for states, under chats that come back: who lives.

    python tests/benchmarks/mamba/few_slots.py OUT.json

Boots stock and ``mamba.slot-exhaustion`` with the same few slots, MTP and the hierarchical cache,
dummy weights of `gdn-24` with states of 150 MB: they are tracked in two buffers, and there are 120
slots for 24 requests at a time, which is what stock asks for. Each boot is on one of GPUS ("0 1"),
and takes about 45 GB. Both get the same load at the same time: 48 chats of 8 turns, of which each
adds 200 tokens and a reply of 96. Told are how many replies came within 60 s, and what the
scheduler died of. A chat without a reply has ended.

As all replies are of one length, 24 requests end together. Their last states are copied to the host
in one go, 3.6 GB, and can't be evicted until then; the next 24 have been prefilled sooner.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rig"))

import fleet
from engine import Server, greedily, parsed, patches_here

SHAPE = "gdn-24"
GPUS = os.environ.get("GPUS", "0 1").split()
BOOT_S, LOAD_S = 200.0, 60.0
CLIENTS, TURNS = 48, 8
NEW, REPLY = 200, 96
"""Tokens that a turn adds, and of a reply."""

OPTIONS = [
    *("model.linear_num_key_heads=32", "model.linear_num_value_heads=128"),
    *("context_length=16384", "mem_fraction_static=0.9", "max_total_tokens=120000"),
    *("chunked_prefill_size=8192", "enable_hierarchical_cache=true", "hicache_size=24"),
    *("cuda_graph_bs=[1,8,24]", "cuda_graph_max_bs=24", "disable_piecewise_cuda_graph=true"),
    *("speculative_algorithm=NEXTN", "speculative_num_steps=3", "speculative_eagle_topk=1"),
    *("speculative_num_draft_tokens=4", "enable_cache_report=true"),
    *("mamba_scheduler_strategy=extra_buffer", "mamba_track_interval=64"),
    *("max_mamba_cache_size=120", "max_running_requests=24"),
]
_CAME = "few_slots: a reply came"


class Boot(fleet.Boot):
    """An Engine in a process of its own."""

    script = __file__

    def died_of(self) -> list[str]:
        """What its scheduler's assertions said, and where."""
        text = self._log.read_text(errors="replace")
        errors = r"(?:AssertionError|RuntimeError): [^\n]{0,160}"
        return re.findall(rf"{errors}|line \d+, in \w+", text)[-8:]

    def replies(self) -> int:
        """How many came, also where it died."""
        return self._log.read_text(errors="replace").count(_CAME)

    def begin(self, what: str) -> None:
        """Have it do something, together with the others; `answer` waits for it."""
        assert self._process.stdin is not None
        self.rest(False)
        self._process.stdin.write((json.dumps([what]) + "\n").encode())
        self._process.stdin.flush()


def plans() -> list[dict[str, Any]]:
    """Of both boots."""
    patches = {"stock": "", "patched": "mamba.slot-exhaustion"}
    return [
        {
            "name": side,
            "group": "",
            "options": OPTIONS,
            "env": {"CUDA_VISIBLE_DEVICES": gpu},
            "patches": chosen,
        }
        for (side, chosen), gpu in zip(patches.items(), GPUS, strict=True)
    ]


def main(out: Path) -> None:
    """Boot, have all serve the load at once, and write what came of it."""
    began = time.monotonic()
    found: dict[str, Any] = {}
    with fleet.booting(out, plans(), Boot) as boots:
        up = fleet.booted(boots, began + BOOT_S)
        for boot in up:
            boot.begin("serve")
        until = time.monotonic() + LOAD_S + 30
        for boot in boots:
            served = boot.answer(max(1.0, until - time.monotonic())) if boot in up else None
            told = {"replies": boot.replies(), "served": served, "died of": boot.died_of()}
            found[boot.name] = {**told, **boot.found}
            print(boot.name, json.dumps(told), flush=True)
            out.write_text(json.dumps(found, indent=1) + "\n")


class Seat:
    """One Engine, in this process, which serves chats."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        """Boot it, and have kernels compile."""
        options, model = parsed(plan["options"])
        self.server = Server(SHAPE, options, model)
        self.server.generate(self.server.prompts(1, NEW), 8)
        self.server.flush()
        self._host = 0

    def serve(self) -> dict[str, Any]:
        """All chats at once, for LOAD_S at most."""
        self.server.seed("chats")
        asked = [self.server.prompts(TURNS, NEW) for _ in range(CLIENTS)]
        began = time.monotonic()

        async def chat(number: int) -> None:
            ids: list[int] = []
            for new in asked[number]:
                ids += new
                reply = await self.server.engine.async_generate(
                    input_ids=list(ids), sampling_params=greedily(REPLY)
                )
                got = list(reply["output_ids"])
                if len(got) < REPLY:
                    return
                ids += got
                print(_CAME, flush=True)
                where = reply["meta_info"].get("cached_tokens_details") or {}
                self._host += bool(where.get("host"))

        async def chats() -> None:
            all_of_them = asyncio.gather(*map(chat, range(CLIENTS)), return_exceptions=True)
            await asyncio.wait_for(all_of_them, LOAD_S)

        error = ""
        try:
            self.server.engine.loop.run_until_complete(chats())
        except Exception as failed:
            error = f"{type(failed).__name__}: {failed}"
        return {
            "asked": CLIENTS * TURNS,
            "with a prefix from the host": self._host,
            "seconds": round(time.monotonic() - began, 1),
            "ended by": error[:300],
            "patches": patches_here(),
        }


def seat(replies: str, plan: Mapping[str, Any]) -> None:
    """Boot one Engine, then answer until standard input ends."""

    def boot() -> tuple[Server, dict[str, Any], fleet.Does]:
        mine = Seat(plan)
        return mine.server, {"patches": patches_here()}, {"serve": mine.serve}

    fleet.answer_until_end(replies, boot)


if __name__ == "__main__":
    if sys.argv[1] == "seat":
        seat(sys.argv[2], json.loads(sys.argv[3]))
    else:
        main(Path(sys.argv[1]))
