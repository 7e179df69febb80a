"""A real Engine of the sglang on PYTHONPATH, and what is asked of it.

`Server` boots it with a shape of `shapes`, and asks the processes of the server to show stock's
code or ours (see ``injected/``). What a release's Engine does not know is left out, and printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shapes

_HERE = Path(__file__).resolve().parent
_PROBE = _HERE.parents[1] / "harness" / "probe"
_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    "SGLANG_DISABLE_CUDNN_CHECK": "1",
    "SGLANG_ENABLE_SPEC_V2": "1",
    "DUMMY_WEIGHTS": "1",
}
_RENAMED = (
    ("cuda_graph_max_bs", "cuda_graph_max_bs_decode"),
    ("cuda_graph_bs", "cuda_graph_bs_decode"),
    ("disable_piecewise_cuda_graph", "disable_prefill_cuda_graph"),
    ("mamba_scheduler_strategy", "mamba_radix_cache_strategy"),
)
"""Arguments by an older name and a newer one."""

Prompts = list[list[int]]


@dataclass(frozen=True)
class Replies:
    """What came of prompts that were sent at once."""

    seconds: float  # until the last reply was whole
    tokens: list[list[int]]
    latencies: list[float]  # seconds of each
    cached: list[int]  # tokens of each prompt that the prefix cache had
    steps: int  # verify steps of all, 0 without speculation
    logprobs: list[list[float]]  # of each token of each reply; none where they were not asked

    def figures(self) -> dict[str, float]:
        return {"last": 1e3 * self.seconds, "median": 1e3 * statistics.median(self.latencies)}


class Server:
    """The Engine; `words` is the size of its vocabulary.

    `said`: what its scheduler's process says of the patches and graphs; empty without patches.
    """

    def __init__(
        self, shape: str, options: Mapping[str, Any], model: Mapping[str, Any], *, asks: bool = True
    ) -> None:
        """Boot a shape (`shapes.write`), and wait for what ``injected/`` prepares.

        `options` are fields of ServerArgs, of which None takes one of the shape's away, and `model`
        changes its configuration. `asks`: whether `ask` will be called.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="rig-"))
        if asks:
            os.environ["RIG_FOLDER"] = str(self.folder)
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        os.environ["PYTHONPATH"] = os.pathsep.join(_path())
        chosen, self.words = shapes.write(shape, self.folder / "models", model)
        options = {**shapes.EVERYWHERE, **chosen, **options}
        self.has_cache = not options.get("disable_radix_cache")
        began = time.monotonic()
        self._number = 0
        self._rids = itertools.count()
        self._ranks = range(int(options.get("tp_size", 1)))
        self._draw = random.Random(0)
        self.engine = _booted(options)
        self.boot_s = round(time.monotonic() - began, 1)
        asks = asks and os.environ.get("SGLANG_PERF_PATCHES", "all") not in {"none", "off", "0", ""}
        self.said: dict[str, Any] = self.ask("said", limit_s=300) if asks else {}

    def close(self) -> None:
        self.engine.shutdown()

    def ask(self, what: str, *details: Any, limit_s: float = 120) -> Any:
        """Have every rank's process do something between requests; what the first one answers.

        Lists are those of all ranks, one behind the other. A RuntimeError if it failed there, a
        TimeoutError if no answer came.
        """
        self._number += 1
        part = self.folder / "asked"
        part.write_text(json.dumps([self._number, what, *details]), encoding="utf-8")
        part.rename(self.folder / "command")
        until = time.monotonic() + limit_s
        answers = []
        for rank in self._ranks:
            done = self.folder / f"done.{self._number}.{rank}"
            while not done.exists():
                if time.monotonic() > until:
                    raise TimeoutError(f"{what}, rank {rank}")
                time.sleep(0.002)
            answers.append(json.loads(done.read_text(encoding="utf-8")))
        for answer in answers:
            if "error" in answer:
                raise RuntimeError(answer["error"])
        told = [answer["answer"] for answer in answers]
        return [each for part in told for each in part] if isinstance(told[0], list) else told[0]

    def sums(self) -> dict[str, Any]:
        """For each rank: a number for each layer's states, and how many slots were written."""
        file = self.folder / "sums"
        self.engine.collective_rpc("rig_sums", file=str(file))
        by_rank = sorted(self.folder.glob("sums.*"))
        return {each.suffix[1:]: json.loads(each.read_text("utf-8")) for each in by_rank}

    def flush(self) -> None:
        time.sleep(0.2)
        with contextlib.suppress(AttributeError):
            self.engine.flush_cache()
        time.sleep(0.1)

    def seed(self, text: str) -> None:
        self._draw = random.Random(text)

    def prompts(self, count: int, length: int) -> Prompts:
        first = 10 if self.words > 100 else 3
        words = [self._draw.randrange(first, self.words) for _ in range(count * length)]
        return [words[start : start + length] for start in range(0, len(words), length)]

    def generate(self, prompts: Prompts, output: int, **more: Any) -> Replies:
        """Send prompts at once, greedily, for so many tokens each."""
        began = time.perf_counter()
        replies = self.engine.generate(input_ids=prompts, sampling_params=greedily(output), **more)
        seconds = time.perf_counter() - began
        about = [reply["meta_info"] for reply in replies]
        return Replies(
            seconds,
            [list(reply["output_ids"]) for reply in replies],
            [each.get("e2e_latency") or seconds for each in about],
            [each.get("cached_tokens") or 0 for each in about],
            sum(each.get("spec_verify_ct") or 0 for each in about),
            [[one[0] for one in each.get("output_token_logprobs") or ()] for each in about],
        )

    def mixed(
        self, sent: Sequence[tuple[list[int], float | None]], output: int
    ) -> list[tuple[int, list[int]]]:
        """Of prompts sent at once, tokens that the prefix cache had, and those of the replies.

        Those with a number are aborted after so many seconds.
        """

        async def one(prompt: list[int], ends: float | None) -> tuple[int, list[int]]:
            rid = f"mixed-{next(self._rids)}"
            if ends is not None:
                manager = self.engine.tokenizer_manager
                asyncio.get_running_loop().call_later(ends, manager.abort_request, rid)
            try:
                reply = await self.engine.async_generate(
                    input_ids=prompt, sampling_params=greedily(output), rid=rid
                )
            except ValueError:  # what some aborts become
                if ends is None:
                    raise
                return 0, []
            return reply["meta_info"].get("cached_tokens") or 0, list(reply.get("output_ids") or ())

        async def all_of() -> list[Any]:
            return await asyncio.gather(*(one(*each) for each in sent))

        told: list[tuple[int, list[int]]] = self.engine.loop.run_until_complete(all_of())
        return told

    def profile_decodes(
        self, prompts: Prompts, output: int, folder: Path, *, after_s: float, **options: Any
    ) -> None:
        """Profile ``num_steps`` forwards that begin so many seconds after prompts were sent."""
        from sglang.srt.managers.io_struct import ProfileReq

        async def both() -> None:
            sent = self.engine.async_generate(input_ids=prompts, sampling_params=greedily(output))
            replies = asyncio.ensure_future(sent)
            await asyncio.sleep(after_s)
            request = ProfileReq(output_dir=str(folder), **options)
            await self.engine.tokenizer_manager.start_profile(request)
            await replies

        self.engine.loop.run_until_complete(both())
        with contextlib.suppress(Exception):  # it ended by itself, unless the replies came first
            self.engine.stop_profile()


def parsed(words: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options and changes to the model, of ``NAME=VALUE`` and ``model.NAME=VALUE``.

    A value is JSON, or else text. An empty one takes an option of the shape's away.
    """
    options: dict[str, Any] = {}
    model: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        value: Any = text or None
        with contextlib.suppress(ValueError):
            value = json.loads(text) if text else None
        (model if name.startswith("model.") else options)[name.removeprefix("model.")] = value
    return options, model


def quartiles(values: Sequence[float]) -> list[float]:
    """Of any number of values; one value is all three."""
    if len(values) < 2:
        return [round(value, 3) for value in values] * 3
    return [round(value, 3) for value in statistics.quantiles(values, n=4)]


def patches_here(server: int | None = None) -> dict[str, list[str]]:
    """The patches that ran in processes of a server, and those that stayed out, with why.

    Without a PID the server is this process's. A patch that ran in several processes, such as two
    ranks, is there as often.
    """
    from sglang_perf_patches.telemetry import records

    pid = os.getpid() if server is None else server
    processes = [each for each in records.read_all() if each["server"] == pid]
    states: list[dict[str, Any]] = [one for each in processes for one in each["patches"]]
    return {
        "ran": sorted(state["id"] for state in states if state["ran"]),
        "left out": sorted(
            {
                f"{state['id']} {state['state']}: {state['reason']}"
                for state in states
                if state["state"] in {"gated", "conflict", "failed", "refused"}
            }
        ),
    }


def memory() -> int:
    """MiB that this process group holds on the GPUs; 0 where nvidia-smi does not say."""
    command = "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits"
    try:
        told = subprocess.run(command.split(), capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    total = 0
    for line in told.splitlines():
        pid, _, used = line.partition(",")
        with contextlib.suppress(ValueError, ProcessLookupError):
            total += int(used) if os.getpgid(int(pid)) == os.getpgid(0) else 0
    return total


def greedily(output: int) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": output, "ignore_eos": True}


def _booted(options: dict[str, Any]) -> Any:
    import sglang
    from sglang.srt.server_args import ServerArgs

    arguments: Any = ServerArgs
    known = getattr(arguments, "__dataclass_fields__", None) or arguments.__struct_fields__
    for older, newer in _RENAMED:
        if older in options and older not in known and newer in known:
            options.setdefault(newer, options.pop(older))
    given = {name: value for name, value in options.items() if value is not None}
    dropped = [name for name in given if name not in known]
    print("sglang", sglang.__version__, "dropped", dropped, flush=True)
    return sglang.Engine(**{name: value for name, value in given.items() if name in known})


def _path() -> list[str]:
    """What the server's processes import from.

    What `run` put first stays first, and goes on to our ``sitecustomize``, which goes on to those
    behind it.
    """
    from sglang_perf_patches import bootstrap

    ours = [str(_HERE / "injected"), str(_PROBE)]
    path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    path = [each for each in path if each not in ours]
    first = 1 if path[:1] == [os.fspath(bootstrap.FOLDER)] else 0
    return [*path[:first], ours[0], *path[first:], ours[1]]
