"""A disaggregated pair of servers on two GPUs, and requests to it, for `transfer_load.py`.

A stock prefill server on the first GPU and two decode servers on the second, one stock and one with
the exact swa patches, of the sglang on PYTHONPATH. All have the same small GPT-OSS with the same
random weights. `probe/sitecustomize.py` counts in each decode server.

The servers run with deterministic inference, so that a request's output does not depend on what
else is in its batch. Where a release can't boot with it here, they run without it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rig"))

from engine import patches_here as patches_here
from shapes import SHAPES, whole

CONFIG = whole(SHAPES["gpt-oss-small"].config)
PORTS = {"prefill": 31000, "stock": 33000, "patched": 35000}
BOOTSTRAP = 8998
FULL, RATIO = 83_968, 0.5  # whole pages of 64, both
CONTEXT = 8_448
"""Little, because a host's pool that holds one request of that length is no larger for it."""

DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_act": "silu",
    "num_hidden_layers": 1,
    "draft_vocab_size": CONFIG["vocab_size"],
} | {
    name: CONFIG[name]
    for name in (
        *("torch_dtype", "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"),
        *("rope_theta", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"),
    )
}
"""A draft model for EAGLE-3, with one layer, to be loaded where one is asked for."""

ROOMS = itertools.count(1001)

_POOLS = ("swa_size", "swa_free", "full_size", "full_free", "still_mapped")
_RETRACTED = ("retractions", "kept_in_tensors", "tokens_in_tensors", "aborted_retracting")


@dataclass
class Side:
    """A server: its name, its process and its port."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    probe: Path
    ranks: int = 1

    @property
    def port(self) -> int:
        return PORTS[self.name]

    def probes(self) -> list[Path]:
        """What its schedulers write to, one file each."""
        return sorted(self.probe.parent.glob(self.probe.name.replace("PID", "*")))

    def reset(self) -> None:
        for each in self.probes():
            Path(f"{each}.reset").touch()


def software() -> dict[str, str]:
    import sglang

    told = {"sglang": sglang.__version__}
    for name in ("torch", "triton", "nixl", "sglang-kernel", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            told[name] = importlib.metadata.version(name)
    return told


def gpus() -> list[str]:
    wanted = ["--query-gpu=name,driver_version,memory.used", "--format=csv,noheader"]
    try:
        done = subprocess.run(["nvidia-smi", *wanted], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [str(error)]
    return done.stdout.splitlines()


class DidNotBoot(Exception):
    """A server ended, or did not answer in time."""


def prompt(number: int, length: int) -> list[int]:
    """Token ids that differ from prompt to prompt and have no period."""
    state, ids = 12345 + 7919 * number, []
    for _ in range(length):
        state = (1103515245 * state + 12345) % 2**31
        ids.append(10 + (state >> 8) % 30000)
    return ids


@contextlib.contextmanager
def servers(
    given: argparse.Namespace, deterministic: bool, until: float
) -> Iterator[dict[str, Side]]:
    first, second = given.gpus.split(",")
    if given.ranks > 1:
        second = first  # a decode server is on both
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "draft").mkdir()
    (folder / "draft" / "config.json").write_text(json.dumps(DRAFT))
    sides: dict[str, Side] = {}
    try:
        for name, gpu in (("prefill", first), ("stock", second), ("patched", second)):
            log = given.out.with_suffix(f".{name}.log")
            probe = folder / f"probe-{name}-PID.json"
            command = [sys.executable, "-m", "sglang.launch_server"]
            command += _arguments(given, folder, name, gpu, deterministic)
            if name == "patched":
                command = [sys.executable, "-m", "sglang_perf_patches", "run", *command]
            with log.open("wb") as file:
                process = subprocess.Popen(
                    command,
                    env=_variables(name, probe),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            sides[name] = Side(name, process, log, probe, 1 if name == "prefill" else given.ranks)
        began = time.monotonic()
        for side in sides.values():
            _wait(side, min(until, began + 240))
        print(f"booted in {time.monotonic() - began:.0f} s", flush=True)
        yield sides
    finally:
        for side in sides.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(side.process.pid, signal.SIGKILL)
            side.process.wait()


def _variables(name: str, probe: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
        "SGLANG_DISABLE_CUDNN_CHECK": "1",
        "SGLANG_HOST_IP": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
        "SGLANG_PERF_PATCHES": "swa" if name == "patched" else "none",
        "SWA_PROBE": "" if name == "prefill" else str(probe),
        "DUMMY_WEIGHTS": "1",
    }


def _arguments(
    given: argparse.Namespace, folder: Path, name: str, gpu: str, deterministic: bool
) -> list[str]:
    from sglang.srt.server_args import ServerArgs

    prefill = name == "prefill"
    wanted: dict[str, Any] = {
        "model-path": folder,
        "load-format": "dummy",
        "skip-tokenizer-init": True,
        "skip-server-warmup": True,
        "host": "127.0.0.1",
        "port": PORTS[name],
        "base-gpu-id": gpu,
        "disaggregation-mode": "prefill" if prefill else "decode",
        "disaggregation-transfer-backend": "nixl",
        "disaggregation-bootstrap-port": BOOTSTRAP,
        "attention-backend": "triton",
        "sampling-backend": "pytorch",
        "grammar-backend": "none",
        "moe-runner-backend": "triton",
        "page-size": given.page_size,
        "max-total-tokens": FULL // (1 if prefill else given.ranks),
        "num-reserved-decode-tokens": 32,
        "swa-full-tokens-ratio": RATIO,
        "context-length": CONTEXT,
        "max-running-requests": 64,
        "mem-fraction-static": 0.8,
        "disable-radix-cache": True,
        "disable-cuda-graph": True,
        "disable-piecewise-cuda-graph": True,
        "cuda-graph-backend-prefill": "disabled",
        "enable-deterministic-inference": deterministic,
        "random-seed": 0,
        "log-level": "warning",
    }
    if prefill:
        wanted["prefill-max-requests"] = 1  # so that a prompt's KV does not depend on the others
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    if not prefill and given.ranks > 1:
        wanted["tp-size"] = given.ranks
        if "--attn-dp-size" in known:
            wanted["attn-dp-size"] = given.ranks
        else:
            wanted |= {"dp-size": given.ranks, "enable-dp-attention": True}
    if given.draft:
        wanted |= {
            "speculative-algorithm": "EAGLE3",
            "speculative-draft-model-path": folder / "draft",
            "speculative-num-steps": 2,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": 3,
        }
    arguments = []
    for option, value in wanted.items():
        if f"--{option}" not in known or value is False:
            continue
        arguments += [f"--{option}", *([] if value is True else [str(value)])]
    return arguments


def _wait(side: Side, until: float) -> None:
    while time.monotonic() < until:
        if side.process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", side.port), 1):
            return
        time.sleep(0.5)
    raise DidNotBoot(f"{side.name}:\n{side.log.read_text(errors='replace')[-3000:]}")


def settled(side: Side) -> dict[str, Any]:
    """What the probes counted, once the server is idle, and whether its pools are whole."""
    for _ in range(80):
        time.sleep(0.5)
        written = [each for each in side.probes() if each.stat().st_mtime > time.time() - 1]
        states = [json.loads(each.read_text()) for each in written]
        if len(states) == side.ranks and all(state["idle"] for state in states):
            told = _together(states)
            free, sizes = ((told[f"swa_{of}"], told[f"full_{of}"]) for of in ("free", "size"))
            return told | {"pools_whole": free == sizes and told["still_mapped"] == 0}
    raise RuntimeError(f"{side.name} did not become idle, or no probe runs in it")


def _together(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What ranks with pools of their own come to: sums, but peaks and minima are of one rank."""
    told = dict(states[0])
    for name in (*_POOLS, *_RETRACTED):
        told[name] = sum(state[name] for state in states)
    for name in ("steps", "peak_in_flight", "peak_in_transfer"):
        told[name] = max(state[name] for state in states)
    told["least_swa_free"] = min(state["least_swa_free"] for state in states)
    return told if len(states) == 1 else told | {"ranks": list(states)}


@dataclass
class Reply:
    """What came of one request, with the seconds until its first token."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    first: float | None = None
    ended: str = ""


def _summary(replies: Sequence[Reply]) -> dict[str, Any]:
    firsts = [reply.first for reply in replies if reply.first is not None]
    return {
        "finished": sum(reply.ended == "length" for reply in replies),
        "ended": dict(Counter(reply.ended for reply in replies)),
        "ttft_median_s": round(statistics.median(firsts), 3) if firsts else None,
        "ttft_last_s": round(max(firsts), 3) if firsts else None,
    }


def _equal(first: Sequence[Reply], second: Sequence[Reply]) -> int:
    """How many replies have the same tokens and log-probabilities, bit by bit."""
    ours, theirs = ([(each.tokens, each.logprobs) for each in side] for side in (first, second))
    return sum(a == b for a, b in zip(ours, theirs, strict=True))


@dataclass
class _Burst:
    """Requests that were sent at once."""

    replies: list[Reply]
    threads: list[threading.Thread] = field(default_factory=list)

    def ended(self, within: float = 160.0) -> list[Reply]:
        """The replies, once all have ended; those that have not in their time say so."""
        until = time.monotonic() + within
        for thread in self.threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))
        return self.replies


def _start(
    side: Side, prompts: Sequence[list[int]], output: int, aborted: Collection[int] = ()
) -> _Burst:
    """Send all at once; abort some while they wait or are in transfer."""
    burst = _Burst([Reply() for _ in prompts])

    def start(function: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        return thread

    for number, ids in enumerate(prompts):
        room = next(ROOMS)
        # Nobody waits for the prefill server: what the decode server refuses, it keeps for long.
        start(_sent, PORTS["prefill"], "generate", _body(ids, output, room), 160)
        burst.threads.append(start(_decode, side, ids, output, room, burst.replies[number]))
        if number in aborted:
            burst.threads.append(start(_abort, side, room, 0.02 + 0.9 * (number / len(prompts))))
    return burst


def _body(ids: list[int], output: int, room: int, **more: Any) -> bytes:
    sampling = {"temperature": 0, "max_new_tokens": output, "ignore_eos": True}
    named = {
        "rid": f"room-{room}",
        "input_ids": ids,
        "sampling_params": sampling,
        "return_logprob": True,
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": BOOTSTRAP,
        "bootstrap_room": room,
    }
    return json.dumps(named | more).encode()


def _decode(side: Side, ids: list[int], output: int, room: int, reply: Reply) -> None:
    began = time.monotonic()
    chunks: list[dict[str, Any]] = []
    try:
        with _post(side.port, "generate", _body(ids, output, room, stream=True), 150) as answer:
            for line in answer:
                text = line.decode().strip()
                if not text.startswith("data:") or text == "data: [DONE]":
                    continue
                chunk = json.loads(text[5:])
                if "error" in chunk:
                    reply.ended = "error"
                    break
                if reply.first is None and chunk.get("output_ids"):
                    reply.first = time.monotonic() - began
                chunks.append(chunk)
    except urllib.error.HTTPError as error:
        reply.ended = f"http {error.code}"
    except (OSError, ValueError) as error:
        reply.ended = type(error).__name__
    if not chunks or reply.ended:
        reply.ended = reply.ended or "empty"
        return
    last = chunks[-1]
    reply.ended = str((last["meta_info"].get("finish_reason") or {}).get("type"))
    # Each chunk has all tokens so far, or only the new ones, depending on the release.
    whole = len(last.get("output_ids") or ()) == output
    told = [last] if whole else chunks
    reply.tokens = [int(n) for chunk in told for n in chunk.get("output_ids") or ()]
    logprobs = last["meta_info"].get("output_token_logprobs") or []
    if len(logprobs) != len(reply.tokens):
        logprobs = [
            entry
            for chunk in chunks
            for entry in chunk["meta_info"].get("output_token_logprobs") or ()
        ]
    reply.logprobs = [float(entry[0]) for entry in logprobs]


def _abort(side: Side, room: int, after: float) -> None:
    time.sleep(after)
    body = json.dumps({"rid": f"room-{room}"}).encode()
    for port in (side.port, PORTS["prefill"]):
        _sent(port, "abort_request", body, 20)


def _sent(port: int, path: str, body: bytes, limit_s: float) -> None:
    """Post something to a server, whatever it answers."""
    with contextlib.suppress(OSError, ValueError):
        _post(port, path, body, limit_s).read()


def _post(port: int, path: str, body: bytes, limit_s: float) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", body, headers)
    return urllib.request.urlopen(request, timeout=limit_s)
