"""Somebody else's plugin, for the tests: what its author might do beside ours.

``THEIR_PLUGIN`` says what. With ``replaces`` it replaces a method that runs while the server
answers, and wraps one that does not. With ``wraps`` it wraps one that runs, and replaces methods
and classes that do not. It acts in the scheduler only. Each call of the method that runs adds a
byte to the file ``THEIR_CALLS``.
"""

import importlib
import json
import multiprocessing
import os
import sys

SRT = "sglang.srt"
MLX = f"{SRT}.hardware_backend.mlx"
DECODE = f"{SRT}.disaggregation.decode"
MAMBA2 = f"{SRT}.layers.attention.mamba.mamba2_metadata"
LIGHTNING = f"{SRT}.layers.attention.linear.lightning_backend"
TRTLLM_MLA = f"{SRT}.layers.attention.trtllm_mla_backend"
OF_WARM_UP = 20
"""Tokens that stock's warm-up and health check do not reach, and each request of the test does."""


def load():
    is_child = multiprocessing.current_process().name != "MainProcess"
    if is_child and f"{SRT}.managers.scheduler" in sys.modules:
        {"wraps": wraps, "replaces": replaces}[os.environ["THEIR_PLUGIN"]]()


def wraps():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    lightning, trtllm_mla, mamba2 = map(importlib.import_module, (LIGHTNING, TRTLLM_MLA, MAMBA2))

    class Backend(lightning.LightningAttentionBackend):
        """Replaces stock's class, through the registry."""

    class Drafts(trtllm_mla.TRTLLMMLAMultiStepDraftBackend):
        """Replaces stock's class, by assignment."""

    def around(original, *args, **kwargs):
        counted()
        return original(*args, **kwargs)

    register = HookRegistry.register
    register(
        f"{MLX}.kv_cache.attention_wrapper.MLXAttentionWrapper._batched_decode",
        around,
        HookType.AROUND,
    )
    register(
        f"{DECODE}.DecodePreallocQueue._uses_swa_tail_prealloc", their_method, HookType.REPLACE
    )
    register(f"{LIGHTNING}.LightningAttentionBackend", Backend, HookType.REPLACE)
    mamba2.Mamba2Metadata.prepare_mixed = classmethod(their_method)
    trtllm_mla.TRTLLMMLAMultiStepDraftBackend = Drafts


def replaces():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def around(original, *args, **kwargs):
        return original(*args, **kwargs)

    register = HookRegistry.register
    register(f"{MLX}.model_runner.MlxModelRunner._release_cache", forget_cache, HookType.REPLACE)
    register(f"{DECODE}.DecodePreallocQueue._uses_swa_tail_prealloc", around, HookType.AROUND)


def their_method(self, *args, **kwargs):
    raise NotImplementedError("nothing in this server calls it")


def forget_cache(self, cache):
    """Stock keeps a finished request's cache for the next one."""
    if cache[0].offset > OF_WARM_UP:
        counted()


def counted():
    if not os.path.exists(os.environ["THEIR_CALLS"]):
        with open(os.environ["THEIR_CALLS"] + ".json", "w") as file:
            json.dump({name: origin(name) for name in os.environ["THEIR_LOOK"].split()}, file)
    with open(os.environ["THEIR_CALLS"], "ab") as file:
        file.write(b".")


def origin(reference):
    """The files of the code that runs for a name in this process, outermost first."""
    from sglang_perf_patches.live.switch import callee_of

    module, _, name = reference.partition(":")
    owner, _, name = name.rpartition(".")
    held = vars(getattr(sys.modules[module], owner) if owner else sys.modules[module])[name]
    files = []
    while held is not None:
        held = getattr(held, "__func__", held)
        files.append(held.__code__.co_filename)
        held = callee_of(held) or getattr(held, "__wrapped__", None)
    return files
