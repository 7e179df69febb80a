"""Which faults servers have, by their arguments as a release resolves them.

The release is on PYTHONPATH. Stdin has a JSON list of ``[environment, GPU or null, arguments]``;
each is resolved in a fork of its own, as ``doctor -- COMMAND`` does. Prints one JSON line a server:
``faults``, each with whether it is sure, or why it ``failed``.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from sglang_perf_patches import faults
from sglang_perf_patches.cli.ask import resolver, stand_ins
from sglang_perf_patches.live import published


def main(release: str) -> None:
    """Import once for all servers with the same GPU."""
    servers: list[tuple[dict[str, str], dict[str, Any] | None, list[str]]] = json.load(sys.stdin)
    answers: dict[int, str] = {}
    by_gpu: dict[str, list[int]] = {}
    for at, (_, gpu, _) in enumerate(servers):
        by_gpu.setdefault(json.dumps(gpu), []).append(at)
    for chosen in by_gpu.values():
        answers |= dict(zip(chosen, _in_fork(release, [servers[at] for at in chosen]), strict=True))
    for at in range(len(servers)):
        print(answers[at])


def _in_fork(release: str, servers: list[Any]) -> list[str]:
    """Answers of servers that can share what they import."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "answers")
        child = os.fork()
        if not child:
            try:
                with out.open("w", encoding="utf-8") as stream:
                    _answer(release, servers, Path(folder), stream)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return out.read_text(encoding="utf-8").splitlines()


def _answer(release: str, servers: list[Any], folder: Path, stream: io.TextIOWrapper) -> None:
    environment, gpu, _ = servers[0]
    os.environ.update(environment)
    resolver.leave_out()
    stand_ins.lend()
    if gpu is not None:
        resolver.pretend(gpu, folder)
    else:
        _pretend_a_mac(importlib.import_module("torch"))
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        importlib.import_module("sglang.srt.server_args")
    runtime: Any = sys.modules.get("sglang.srt.hardware_backend.mlx.runtime")
    if runtime is not None:  # since 0.5.19
        runtime._validate_runtime = lambda: None
    for environment, _, words in servers:
        child = os.fork()
        if not child:
            try:
                os.environ.update(environment)
                stream.write(json.dumps(_resolved(release, words)) + "\n")
                stream.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)


def _pretend_a_mac(torch: Any) -> None:
    """MLX resolves its arguments on a Mac only."""
    torch.backends.mps.is_available = torch.mps.is_available = lambda: True
    torch.backends.mps.get_name = lambda: "Apple M4"
    torch.mps.recommended_max_memory = lambda: 64 << 30


def _resolved(release: str, words: list[str]) -> dict[str, Any]:
    random.seed(0)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            resolver.resolve(words)
        except SystemExit:
            return {"failed": said.getvalue().splitlines()[-1]}
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"}
    server = published.published()
    found = faults.found(release, faults.conditions(server))
    return {"faults": {one.fault.name: one.is_sure for one in found}}


if __name__ == "__main__":
    main(sys.argv[1])
