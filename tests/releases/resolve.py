"""Resolve servers' arguments as ``doctor -- COMMAND`` does: ``python resolve.py HOW RELEASE``.

The release is on PYTHONPATH, and HOW is that of `resolver`. Stdin has a JSON list of servers, each
with its GPU (that of `resolver`) and its arguments. The first server tells whether there are GPUs
and whose, none, or a Mac's (``mps``). Each is resolved in a fork of its own. Prints one JSON line a
server: its ``setup``, its ``arguments`` as resolved and its known ``faults``, each with whether it
is sure; or why it is ``refused`` or ``failed``, and then the names of ``faults`` that it may have.
"""

import contextlib
import importlib
import io
import json
import os
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from sglang_perf_patches import faults, stubs
from sglang_perf_patches.cli.ask import resolver
from sglang_perf_patches.cli.ask.command import computes_by_mlx
from sglang_perf_patches.live import published
from sglang_perf_patches.model.setups import FEATURES


def main(imports: str, release: str) -> None:
    servers: list[tuple[dict[str, Any] | None, list[str]]] = json.load(sys.stdin)
    if imports == "minimal":
        resolver.leave_out()
    with tempfile.TemporaryDirectory() as folder:
        first, words = servers[0]
        is_mac = "mps" in words
        if first is not None or is_mac:
            stubs.install(rocm=bool(first and first["rocm"]))
        if first is not None:
            resolver.pretend(first, Path(folder))
        if is_mac:  # MLX resolves its arguments there only
            torch: Any = importlib.import_module("torch")
            torch.backends.mps.is_available = torch.mps.is_available = lambda: True
            torch.backends.mps.get_name = lambda: "Apple M4"
            torch.mps.recommended_max_memory = lambda: 64 << 30
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module("sglang.srt.server_args")
            with contextlib.suppress(ImportError):  # each child would: it reads a configuration
                importlib.import_module("compressed_tensors.quantization")
        runtime: Any = sys.modules.get("sglang.srt.hardware_backend.mlx.runtime")
        if is_mac and runtime is not None:  # since 0.5.19
            runtime._validate_runtime = lambda: None
        for gpu, words in servers:
            child = os.fork()
            if not child:
                try:
                    if gpu is not None:
                        resolver.pretend(gpu, Path(folder))
                    print(json.dumps(resolved(release, words)), flush=True)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)


def resolved(release: str, words: list[str]) -> dict[str, Any]:
    random.seed(0)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            if computes_by_mlx(os.environ):  # a hybrid's defaults need a patch there
                resolver.activate(os.environ.get("SGLANG_PERF_PATCHES", "all"))
            arguments = resolver.resolve(words)
        except SystemExit:
            return {"refused": said.getvalue().splitlines()[-1]}
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
            return {"failed": failed, "faults": resolver._conditions(error)}
    server = published.published()
    values = {name: server.read(name) for name in type(arguments).__annotations__}
    setup = FEATURES.setup(server)
    found = faults.found(release, faults.conditions(server))
    return {
        "setup": [setup.on, setup.lacking, sorted(setup.having)],
        "arguments": {name: re.sub(r" at 0x\w+", "", repr(each)) for name, each in values.items()},
        "faults": {one.name: is_sure for one, is_sure in found},
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
