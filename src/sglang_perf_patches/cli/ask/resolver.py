"""The child that resolves a server's arguments: ``python -m …resolver HOW GPU ARGUMENT …``.

It imports the release's ``ServerArgs``, resolves and publishes them as a launch does, and starts no
server. GPU is the JSON of a `gpus.Gpu`, or ``null``. torch and ``nvidia-smi`` answer as if that GPU
were here; no real GPU is used. With ``SGLANG_USE_MLX=1`` this machine passes for a Mac. HOW is
``quickly`` (without torch's compiler and packages that a server may lack) or ``wholly``. It emits
one line: a `model.feature.Setup`, why the release refuses the arguments, why a model could not be
fetched, or what failed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ... import faults, worker
from ...live import published
from ...model.setups import FEATURES
from . import QUICKLY, hub, stand_ins
from .command import computes_by_mlx

_ARGUMENTS = "sglang.srt.server_args"


_COMPILER = "torch._dynamo"
_DISPENSABLE = ("scipy", "torchao")


def main(how: str, gpu: dict[str, Any] | None, words: list[str]) -> None:
    """Resolve, and emit."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        is_skipped = hub.skip(words)
        if how == QUICKLY:
            leave_out()
        if gpu is not None:
            stand_ins.lend()
            pretend(gpu, Path(folder))
        else:
            stand_ins.lend_torchvision()
            if computes_by_mlx(os.environ) and sys.platform != "darwin":
                pretend_mac()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            line = _resolved(words, said, is_skipped=is_skipped)
    worker.emit(line)


def _resolved(words: list[str], said: io.StringIO, *, is_skipped: bool) -> dict[str, Any]:
    try:
        resolve(words)
    except SystemExit:
        last = said.getvalue().strip().splitlines()[-1:]
        return {"refused": "".join(last).partition("error: ")[2] or "".join(last)}
    except Exception as error:
        if (why := hub.why(error)) and hub.models(words):
            return {"unfetched": "it can't be reached" if is_skipped else why}
        failed = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        return {"failed": failed, "imported": _ARGUMENTS in sys.modules}
    server = published.published()
    setup = FEATURES.setup(server)
    return {
        "on": setup.on,
        "lacking": setup.lacking,
        "having": sorted(setup.having),
        "faults": faults.conditions(server),
    }


def resolve(words: list[str]) -> Any:
    """The arguments, resolved and published."""
    module: Any = importlib.import_module(_ARGUMENTS)
    arguments = module.prepare_server_args(words)
    if hasattr(arguments, "resolve_once"):  # from 0.5.19 on a launch asks for it
        arguments.resolve_once()
    module.set_global_server_args_for_scheduler(arguments)
    return arguments


def leave_out() -> None:
    """Skip two thirds of the imports, on which no argument depends.

    Optional packages are hidden, as if they were not installed. torch's compiler, which nothing
    runs here, is replaced by a module in which every name is a decorator that changes nothing.
    """
    gc.disable()
    sys.modules.update(dict.fromkeys(_DISPENSABLE))  # type: ignore[arg-type]
    sys.meta_path.insert(0, stand_ins.StandIns((_COMPILER,), lambda _: _unchanged))
    torch: Any = importlib.import_module("torch")
    torch.compile = _unchanged


def _unchanged(function: Any = None, *_: Any, **__: Any) -> Any:
    """A decorator, with or without arguments, that changes nothing."""
    return function if callable(function) else lambda decorated: decorated


def pretend(gpu: dict[str, Any], folder: Path) -> None:
    """Make torch and ``nvidia-smi`` answer as on a machine with these GPUs."""
    from ...live import gpu as ours

    count, capability, memory = gpu["count"], tuple(gpu["capability"]), gpu["memory"]
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + f"echo {memory}\n" * count)
    program.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
    properties = SimpleNamespace(
        name=gpu["name"],
        major=capability[0],
        minor=capability[1],
        total_memory=memory << 20,
        multi_processor_count=132,
        gcnArchName="",
        warp_size=32,
    )
    torch: Any = importlib.import_module("torch")
    torch.version.cuda = torch.version.cuda or "13.0"
    answers = {
        "is_available": True,
        "device_count": count,
        "current_device": 0,
        "get_device_capability": capability,
        "get_device_name": gpu["name"],
        "get_device_properties": properties,
        "mem_get_info": (memory << 20, memory << 20),
        "is_bf16_supported": True,
        "get_arch_list": [f"sm_{capability[0]}{capability[1]}"],
        "set_device": None,
        "init": None,
        "_lazy_init": None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, _answering(answer))
    # 0.5.9 describes operators of a wheel that has a stand-in; nothing is compiled here.
    torch.library.register_fake = lambda *_, **__: lambda function: function
    ours.capability = _answering(".".join(map(str, capability)))


def pretend_mac() -> None:
    """Skip the release's check for a Mac, which is there from 0.5.20 on."""
    with contextlib.suppress(ImportError):
        runtime: Any = importlib.import_module("sglang.srt.hardware_backend.mlx.runtime")
        runtime._validate_runtime = _answering(None)


def _answering(answer: Any) -> Any:
    return lambda *_, **__: answer


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:])
