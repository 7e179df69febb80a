"""The child that resolves a server's arguments: ``python -m …resolver TASK ARGUMENT …``.

It imports the release's ``ServerArgs``, resolves and publishes them as a launch does, and starts no
server. TASK is the JSON of what `main` takes. torch and ``nvidia-smi`` answer as if its GPU were
here; no real GPU is used. With ``SGLANG_USE_MLX=1`` this machine passes for a Mac. It emits one
line: a `model.feature.Setup` with what could not be asked, or why there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import re
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Container, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import wrapt

from ... import faults, stubs, worker
from ...faults.fault import Fault
from ...live import engine, published
from ...live.executor import executor
from ...model import switch
from ...model.feature import Server
from ...model.setups import FEATURES
from ...verified import version_of
from . import hub
from .command import is_for_another_mac

_ARGUMENTS = "sglang.srt.server_args"
_LIBRARY = sysconfig.get_paths()["stdlib"]
_NEEDS = re.compile(r"transformers\s*([=<>!~][^;]*)")
_INFINIBAND = ("--disaggregation-ib-device", "--mooncake-ib-device")
_TELLING = 20
"""Characters of a message that tell one fault from another."""

_COMPILER = "torch._dynamo"
_DISPENSABLE = ("scipy", "torchao")


def main(task: dict[str, Any], words: list[str]) -> None:
    """Resolve a server's arguments, and emit.

    Args:
        task: ``release``, its version; ``python``, what to call this Python; ``minimal_imports``,
            whether to leave out modules that no argument depends on; ``gpu``, a `gpus.Gpu` or None;
            ``selection``, the text of the patches that the server activates; ``lenient``, whether
            arguments that the release does not know are somebody else's.
        words: the server's arguments.
    """
    gpu = task["gpu"]
    said = io.StringIO()
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        is_skipped = hub.go_offline_if_unreachable(words)
        if task["minimal_imports"]:
            leave_out()
        if gpu is not None:
            with contextlib.suppress(ModuleNotFoundError):  # as in `leave_out`
                stubs.install(rocm=bool(gpu["rocm"]))
                pretend(gpu, Path(folder))
        else:
            stubs.define_torchvision_operators()
            if is_for_another_mac(os.environ):
                pretend_mac()
                words = [*words, "--device", "cpu"]  # the last one counts, and no "mps" is here
        for option, device in hub.pairs(words):
            if option in _INFINIBAND and device and stubs.pretend_devices(device):
                notes.append(f"whether the server's machine has {device} ({option})")
        if task["lenient"]:
            take_unknown(notes)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            activate(task["selection"])
            line = _resolved(task, words, said, is_skipped=is_skipped)
    worker.emit({**line, "notes": notes})


def activate(selection: str) -> None:
    """Activate what the server would, as a patch may change arguments; it writes no record."""
    if not switch.is_off(selection):
        executor.do(lambda: engine.activate_now(selection, strict=False))


def take_unknown(notes: list[str]) -> None:
    """Leave arguments out that the release does not know, and note them."""

    def parse_args(self: Any, words: Any = None, namespace: Any = None) -> Any:
        taken, unknown = self.parse_known_args(words, namespace)
        if unknown:
            notes.append(f"what sglang does not know: {' '.join(unknown)}")
        return taken

    argparse.ArgumentParser.parse_args = parse_args  # type: ignore[assignment]


def _resolved(
    task: dict[str, Any], words: list[str], said: io.StringIO, *, is_skipped: bool
) -> dict[str, Any]:
    try:
        resolve(words)
    except SystemExit as end:
        if not end.code:
            return {"why": "this command prints something, and starts no server: leave --help out"}
        last = "".join(said.getvalue().strip().splitlines()[-1:])
        why = last.partition("error: ")[2] or last or f"exit code {end.code}"
        return {"why": f"sglang {task['release']} refuses this command: {why}"}
    except Exception as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        if why := _why(error, told, task, words, is_skipped=is_skipped):
            return {"why": why}
        # What was left out for speed may be to blame.
        return {"why": f"sglang {task['release']} could not be asked: {told}", "again": True}
    server = published.published()
    setup = FEATURES.setup(server)
    if is_for_another_mac(os.environ):
        server = _on_mac(server)
    answer = {"on": setup.on, "lacking": setup.lacking, "having": sorted(setup.having)}
    return {**answer, "faults": faults.conditions(server)}


def _why(
    error: Exception, told: str, task: dict[str, Any], words: list[str], *, is_skipped: bool
) -> str:
    """Why there is no answer, if the command, this Python or the model is to blame; else ""."""
    release, python = f"sglang {task['release']}", task["python"]
    install = f"pip install sglang=={task['release']}"
    chain = [*_chain(error)]
    if gone := hub.gone(words):
        folder = "give a folder that has its config.json"
        return f"the model's path {gone[0]} is not on this machine: {folder}"
    of_hub = (each for each in map(type, chain) if each.__module__.startswith("huggingface_hub"))
    if unfetched := next(of_hub, None):
        models = " or ".join(hub.models(words)) or "the model"
        reason = "it can't be reached" if is_skipped else unfetched.__name__
        folder = "instead of that name, give a folder that has the model's config.json"
        where = hub.address().hostname or ""
        return f"can't fetch config.json of {models} from {where} ({reason}): {folder}"
    if _ARGUMENTS in sys.modules and all(map(_is_of_sglang, chain)):
        known = fault_of(task["release"], told, _conditions(error))
        hint = f" (known: {known.text()})" if known else ""
        return f"{release} refuses this command: {told}{hint}"
    for each in chain:
        if isinstance(each, ModuleNotFoundError) and "sglang" not in str(each.name):
            lacks = f"{python} has no {each.name}, which {release} needs to read the command"
            return f"{lacks}: run this in an environment with {release} ({install})"
    if not any("transformers" in _raised(each).filename + str(each) for each in chain):
        return ""
    have, needs = _transformers()
    if needs == f"=={have}":  # then the model is at fault
        return f"{release} could not be asked: transformers {have}, which fits it, failed ({told})"
    installed = f"transformers {have or 'of this Python'} of {python}"
    needed = f"transformers{needs}" if needs else f"the one of {install}"
    return f"{release} could not be asked with {installed} ({told}): it needs {needed}"


def fault_of(release: str, message: str, conditions: Container[str]) -> Fault | None:
    """The known fault, of those named in `conditions`, whose symptom quotes an error's message."""
    for fault in faults.of_release(release):
        quoted = fault.symptom.split("`")[1::2]
        if fault.name in conditions and any(
            len(part) >= _TELLING and part in message for part in quoted
        ):
            return fault
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those behind it."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _raised(error: BaseException) -> traceback.FrameSummary:
    """Where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1] if frames else traceback.FrameSummary("", 0, "")


def _is_of_sglang(error: BaseException) -> bool:
    """Whether the release's own code raised an error on purpose, or the standard library did.

    Anything else may come from a stand-in, or from a package that does not fit the release.
    """
    last = _raised(error)
    path = Path(last.filename)
    if path.is_relative_to(Path(sys.modules["sglang"].__path__[0])):
        return isinstance(error, (AssertionError, OSError)) or str(last.line).startswith("raise")
    return path.is_relative_to(_LIBRARY) and "site-packages" not in path.parts


def _on_mac(server: Server) -> Any:
    """A Mac's server that was resolved with another device, as no ``mps`` is here."""
    return SimpleNamespace(
        read=lambda name: "mps" if name == "device" else server.read(name),
        unlike_default=server.unlike_default,
    )


class _Unresolved(published.Published):
    """A server whose arguments were being resolved: what is ``auto`` can't be read."""

    def read(self, name: str) -> Any:
        """See `model.feature.Server.read`; what is computed from others reads them in this way."""
        value = super().read(name)
        if value == "auto":
            raise LookupError(f"{name} is not resolved")
        return value


def _conditions(error: BaseException) -> list[str]:
    """The known faults that the server may have, by the arguments that were being resolved."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if type(value).__name__ == "ServerArgs":
                return [*faults.conditions(_Unresolved(value))]
    return []


def _transformers() -> tuple[str, str]:
    """The installed version, and the one that the release asks for; "" for what is unknown."""
    needs = ""
    with contextlib.suppress(metadata.PackageNotFoundError):
        asked = filter(None, map(_NEEDS.match, metadata.requires("sglang") or ()))
        needs = next((found[1] for found in asked), "")
    return version_of("transformers") or "", needs


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
    sys.meta_path.insert(0, stubs.StubFinder((_COMPILER,), lambda _: _unchanged))
    with contextlib.suppress(ModuleNotFoundError):  # the release's import says that it is missing
        torch: Any = importlib.import_module("torch")
        torch.compile = _unchanged


def _unchanged(function: Any = None, *_: Any, **__: Any) -> Any:
    """A decorator, with or without arguments, that changes nothing."""
    return function if callable(function) else lambda decorated: decorated


def pretend(gpu: dict[str, Any], folder: Path) -> None:
    """Make torch and the driver's program answer as on a machine with these GPUs."""
    from ... import gpu as ours

    count, capability, memory = gpu["count"], tuple(gpu["capability"]), gpu["memory"]
    program, line = folder / "nvidia-smi", f"echo {memory}\n"
    if gpu["rocm"]:  # what a release looks for in the text of rocminfo
        program = folder / "rocminfo"
        line = f"echo {gpu['rocm']}; echo Pool 1; echo Size: {memory << 10}\n"
    program.write_text("#!/bin/sh\n" + line * count)
    program.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
    properties = SimpleNamespace(
        name=gpu["name"],
        major=capability[0],
        minor=capability[1],
        total_memory=memory << 20,
        multi_processor_count=132,
        gcnArchName=gpu["rocm"],
        warp_size=32,
    )
    torch: Any = importlib.import_module("torch")
    if gpu["rocm"]:
        torch.version.cuda, torch.version.hip = None, "7.0"
    else:
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
    """Skip the release's check for a Mac, which is there from 0.5.20 on, once it is imported."""

    def skip(runtime: Any) -> None:
        runtime._validate_runtime = _answering(None)

    wrapt.register_post_import_hook(skip, "sglang.srt.hardware_backend.mlx.runtime")


def _answering(answer: Any) -> Any:
    return lambda *_, **__: answer


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
