"""What stands on a CPU for a CUDA graph: what is launched while it captures, and nothing else.

A capture of a GPU takes note of kernels with the addresses of their arguments. Python runs once, at
the capture, and whatever it does beside launching kernels is missing from a replay. So does this:
PyTorch's operators and Triton's kernels are noted with the very tensors that they were given, and a
replay runs them again on those.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sglang_perf_patches.live.published import Published

_EXECUTOR = "sglang.srt.model_executor"
_GRAPHS = f"{_EXECUTOR}.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph"

_NO_POOL = (0, 0)
"""The handle with which PyTorch makes a pool for this graph alone."""

_WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero"}
"""Operators whose result the host, or a shape, depends on: a capture refuses them."""


class Tape(TorchDispatchMode):  # type: ignore[misc]
    """Has as much of ``torch.cuda.CUDAGraph`` as stock's captures use."""

    recording: Tape | None = None
    users: ClassVar[dict[Any, weakref.WeakSet[Tape]]] = {}
    """The tapes that were captured into each memory pool and are alive."""

    def __init__(self, keep_graph: bool = False) -> None:
        super().__init__()
        assert not keep_graph
        self.steps: list[Callable[[], None]] = []

    def capture_begin(self, pool: Any, **_: Any) -> None:
        """Note what is launched from now on; PyTorch refuses a pool whose graphs were all freed."""
        assert Tape.recording is None
        if pool != _NO_POOL:
            assert pool not in Tape.users or Tape.users[pool], "use_count > 0: no graph of the pool"
            Tape.users.setdefault(pool, weakref.WeakSet()).add(self)
        Tape.recording = self
        self.__enter__()

    def capture_end(self) -> None:
        Tape.recording = None
        self.__exit__(None, None, None)

    def instantiate(self) -> None:
        """A GPU makes it executable."""

    def replay(self) -> None:
        """Launch all of it again, which is no work of the host."""
        with torch._C.DisableTorchFunction():
            for step in self.steps:
                step()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and note it if it computes anything; refuse it if it would wait."""
        options = dict(kwargs or {})
        result = func(*args, **options)
        name = func.overloadpacket.__name__
        if func.namespace == "c10d":  # writes its arguments, though its schema does not say so
            self.steps.append(lambda: func(*args, **options)[-1].wait())
            return result
        if name in _WAITS:
            raise AssertionError(f"a capture can't wait for {name}")
        results = [value for value in tree_leaves(result) if isinstance(value, torch.Tensor)]
        if func._schema.is_mutable:
            self.steps.append(lambda: func(*args, **options))
        elif not name.startswith("empty") and not _is_view(results, (args, options)):
            self.steps.append(lambda: _again(func, args, options, results))
        return result


@functools.cache
def note_kernels() -> None:
    """Have Triton's interpreter note a kernel in place of running it, while a tape records."""
    from triton.runtime import interpreter

    run = interpreter.GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        tape = Tape.recording
        if tape is not None:
            tape.steps.append(lambda: run(self, *args, **kwargs))
            return None
        return None if _without_kernels else run(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = call


_without_kernels = False


@contextlib.contextmanager
def _only_noted() -> Iterator[None]:
    """Kernels that no tape notes are left out meanwhile: those of a warm-up, which tell nothing."""
    global _without_kernels
    _without_kernels = True
    try:
        yield
    finally:
        _without_kernels = False


def _is_view(results: list[Any], arguments: Any) -> bool:
    """Whether nothing was computed: each result shows memory of an argument."""
    memory = {
        value.untyped_storage().data_ptr()
        for value in tree_leaves(arguments)
        if isinstance(value, torch.Tensor)
    }
    return all(value.untyped_storage().data_ptr() in memory for value in results)


def _again(func: Any, args: Any, options: Any, results: list[Any]) -> None:
    result = [v for v in tree_leaves(func(*args, **options)) if isinstance(v, torch.Tensor)]
    for old, new in zip(results, result, strict=True):
        old.copy_(new)


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Graphs are tapes meanwhile, and streams of a CPU wait for nothing."""
    graphs = importlib.import_module(_GRAPHS)
    device = SimpleNamespace(
        current_stream=torch.cpu.current_stream,
        Stream=SimpleNamespace(wait_stream=lambda *_: None),
        synchronize=lambda: None,
    )
    with (
        mock.patch.object(graphs, "get_device_module", return_value=device),
        mock.patch.object(torch.cuda, "CUDAGraph", Tape),
    ):
        yield


class Unpinned(TorchFunctionMode):  # type: ignore[misc]
    """No memory is pinned: that needs a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        return args[0] if getattr(func, "__name__", "") == "pin_memory" else func(*args, **kwargs)


@contextlib.contextmanager
def capturing(backend: Any) -> Iterator[None]:
    note_kernels()
    with _only_noted(), on_cpu(), backend.capture_session(None):
        yield


def breakable() -> Any:
    return importlib.import_module(f"{_EXECUTOR}.cuda_graph_config").Backend.BREAKABLE


@contextlib.contextmanager
def read_as_breakable() -> Iterator[None]:
    """Within, patches read that prefill graphs break, before `capture_prefills` has made any."""
    read = Published.read

    def on_a_gpu(self: Any, name: str) -> Any:
        return breakable() if name == "graphs.prefill" else read(self, name)

    with mock.patch.object(Published, "read", on_a_gpu):
        yield


def capture_prefills(model_runner: Any, buckets: Sequence[int]) -> None:
    """Have the release's runner capture a model's prefills into tapes, the largest first."""
    context = importlib.import_module("sglang.srt.runtime_context")
    module = importlib.import_module(f"{_EXECUTOR}.runner.prefill_cuda_graph_runner")
    config = context.get_exec().graph.cuda_graph_config.prefill
    config.backend, config.bs = breakable(), list(buckets)

    def capture(self: Any) -> None:
        with _only_noted(), self.backend.replay_session():
            for tokens in reversed(self.capture_num_tokens):
                self.capture_one_shape(tokens)

    note_kernels()
    with mock.patch.object(module.PrefillCudaGraphRunner, "capture", capture):
        model_runner.init_prefill_cuda_graph()
    made = model_runner.prefill_cuda_graph_runner
    assert isinstance(made, module.PrefillCudaGraphRunner), made
