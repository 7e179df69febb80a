"""A disaggregated pair of servers on two GPUs, as `transfer_load.py` boots it.

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
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rig"))

from engine import patches_here as patches_here
from shapes import SHAPES

CONFIG = SHAPES["gpt-oss-small"].config
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


def post(port: int, body: bytes) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=160) as answer:
        return json.load(answer)


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
    known = _known_options()
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


def _known_options() -> set[str]:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return {option for action in parser._actions for option in action.option_strings}


def _wait(side: Side, until: float) -> None:
    while time.monotonic() < until:
        if side.process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", side.port), 1):
            return
        time.sleep(0.5)
    raise DidNotBoot(f"{side.name}:\n{side.log.read_text(errors='replace')[-3000:]}")


def settled(side: Side) -> dict[str, Any]:
    """What the probes counted, once the server is idle."""
    for _ in range(80):
        time.sleep(0.5)
        written = [each for each in side.probes() if each.stat().st_mtime > time.time() - 1]
        states = [json.loads(each.read_text()) for each in written]
        if len(states) == side.ranks and all(state["idle"] for state in states):
            return _together(states)
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
