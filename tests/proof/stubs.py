"""Stand-ins on a CPU for what stock sglang needs of a GPU machine while its code runs.

In addition to `sglang_perf_patches.stubs`: what Triton's interpreter has under another name. The
classes under test, the pools that they read and the Triton kernels that they launch are sglang's
own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
from typing import Any

from sglang_perf_patches import stubs as stock_stubs


@functools.cache
def lend() -> None:
    """Make this process fit for sglang's kernels on a CPU, before triton or sglang is imported."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A model's rotary embedding is compiled at its first call, in seconds of a CPU.
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    stock_stubs.install()
    torch: Any = importlib.import_module("torch")
    triton: Any = importlib.import_module("triton")
    from sglang_perf_patches.verify.mla import rig
    from tests.proof import triton_names
    from tests.proof.mla import OnCpu

    torch.set_num_threads(1)
    rig.AROUND = OnCpu
    _lend_operators(torch)
    # Triton's interpreter knows no device context and tries every configuration.
    torch.cpu.device = torch.cuda.device = lambda *_: contextlib.nullcontext()
    torch.cuda.synchronize = lambda *_: None
    autotune = triton.autotune
    triton.autotune = lambda configs, *args, **kwargs: autotune(configs[:1], *args, **kwargs)
    triton_names.lend()
    _exchange_once_a_launch()
    # The interpreter computes each sum and product of integers once more in 64 bits, and asserts
    # nothing unless it debugs: a fifth of the time that a proof takes.
    builder = importlib.import_module("triton.runtime.interpreter").interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _lend_operators(torch: Any) -> None:
    """Of sglang's own operators, which are Python and registered for CUDA only, what they run."""
    impl = torch.library.Library.impl

    def run_directly(self: Any, name: Any, run: Any, key: str = "", **options: Any) -> Any:
        if (self.ns, key) == ("sglang", "CUDA"):
            setattr(torch.ops.sglang, name, run)
        return impl(self, name, run, key, **options)

    torch.library.Library.impl = run_directly


def _exchange_once_a_launch() -> None:
    """Spare a kernel's own calls the search for what its launch has exchanged already.

    The interpreter puts its functions in the place of Triton's when it launches a kernel, and looks
    through all of ``triton.language`` again in each function that the kernel calls.
    """
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    language: Any = importlib.import_module("triton.language")
    if not hasattr(interpreter, "_LangPatchScope"):  # an older Triton
        return
    modules = (language, language.core)
    exchange = interpreter._patch_lang

    def once(function: Any) -> Any:
        globals_ = function.__globals__.values()
        seen = [module for module in modules if any(each is module for each in globals_)]
        if seen and not any(language.core.is_builtin(module.load) for module in seen):
            return interpreter._LangPatchScope()
        return exchange(function)

    interpreter._patch_lang = once
