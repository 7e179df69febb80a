"""A patch is on only where the server has a use for it; elsewhere it is not needed, or gated."""

from types import SimpleNamespace
from typing import Any

import pytest
from servers import BACKENDS
from throwaway import Throwaway

from sglang_perf_patches import gpu
from sglang_perf_patches.live import published
from sglang_perf_patches.model.setups import FEATURES


def test_what_a_server_has_no_use_for_is_neither_live_nor_gated(server: Throwaway) -> None:
    """Not gated either, though it was not proven with what is on."""
    server.play("""
import sglang.srt.a as a, sglang.srt.server_args as arguments
use(only(proven(STEP), "speculation"), only(TEN, "speculation"), HELPER)
ours.activate("all")
assert state() == ("live", "") and a.Worker().step(1) == 1020
publish(enable_lora=True)
assert engine.report().of("one.step").state == "not needed"
assert state() == state("one.ten") == ("not needed", "speculation is off")
assert state("two.helper") == ("live", "") and a.Worker().step(1) == 2
publish(speculative_algorithm="EAGLE")
assert engine.report().of("one.ten").state == "live", "at once, without a look"
assert state()[0] == "gated" and "EAGLE" in state()[1], "with a use it is like any other"
assert state("one.ten") == ("live", "") and a.Worker().step(1) == 20
publish()
assert state("one.ten") == ("live", ""), "a draft's own arguments take nothing away again"
ours.deactivate()
assert a.Worker().step(1) == 2
""")


def test_not_needed_though_its_modules_are_never_imported(server: Throwaway) -> None:
    server.play("""
import os
use(only(STEP, "mlx"))
ours.activate("all")
assert state()[0] == "pending"
import sglang.srt.server_args as arguments
publish()
assert state() == ("not needed", "MLX is off (SGLANG_USE_MLX)"), state()
os.environ["SGLANG_USE_MLX"] = "1"
import sglang.srt.a as a
assert state() == ("live", "") and a.Worker().step(1) == 102
""")


def test_a_patch_that_needs_one_that_is_not_needed_is_not_either(server: Throwaway) -> None:
    server.play("""
import sglang.srt.a as a, sglang.srt.b as b, sglang.srt.server_args as arguments
both = dataclasses.replace(BOTH, requires=("one.step",))
use(only(STEP, "decode-server"), both)
ours.activate("all")
assert state("two.both") == ("live", "")
publish(disaggregation_mode="prefill")
assert state("two.both") == ("not needed", "it needs one.step: the server is not a decode server")
assert (a.Worker().step(1), b.Caller().call(1)) == (2, 2)
publish(disaggregation_mode="decode")
assert state() == state("two.both") == ("live", "")
""")


def attention(backend: str, **of_phases: str) -> dict[str, str]:
    """A backend of a server, and others of some phases."""
    phases = {f"{phase}_attention_backend": name for phase, name in of_phases.items()}
    return {"attention_backend": backend, **phases}


_HOST_CACHE = {
    "hicache_write_policy": "write_through",
    "hicache_host_memory_mode": "cache",
    "hicache_mem_layout": "page_first",
    "hicache_io_backend": "kernel",
}
_EAGLE = {"speculative_algorithm": "EAGLE"}
_DRAFTS = {**_EAGLE, "dp_size": 1}
USES = {
    "mlx": ({}, {}),
    "torch": ({}, {}),
    "speculation": ({}, _EAGLE),
    "host-drafts": (_EAGLE, {"speculative_algorithm": "NGRAM"}),
    "decode-server": ({"disaggregation_mode": "prefill"}, {"disaggregation_mode": "decode"}),
    "prefills": ({"disaggregation_mode": "decode"}, {"disaggregation_mode": "null"}),
    "prefix-cache": ({"disable_radix_cache": True}, {"disable_radix_cache": False}),
    "one-token-pages": ({"page_size": 64}, {"page_size": 1}),
    "host-cache": ({}, {"enable_hierarchical_cache": True}),
    "ranks": ({"tp_size": 1}, {"tp_size": 2}),
    "one-host": ({"nnodes": 2}, {"nnodes": 1}),
    "polling": ({"sleep_on_idle": True}, {"sleep_on_idle": False}),
    "own-processes": ({"use_ray": True}, {"use_ray": False}),
    "trtllm-mla": (attention("fa3"), attention("fa3", decode="trtllm_mla")),
    "mla": ("Model()", "Model('MLA')"),
    "states": ("Model()", "Model(states=True)"),
    "delta-nets": ("Model(states=True)", "Model(states=True, linear_num_value_heads=8)"),
    "mamba2": (
        "Model(states=True, kind='GraniteMoeHybridConfig', layer_types=['attention'])",
        "Model(states=True, kind='NemotronHConfig')",
    ),
    "lightning": (
        "Model(kind='BailingHybridConfig', use_kda=True)",
        "Model(kind='BailingHybridConfig', use_kda=False)",
    ),
    "minimax-kernel": ("Model()", "Model(whole={'linear_backend': 'minimax'})"),
    "tracked": (
        {"mamba_radix_cache_strategy": "auto", "mamba_scheduler_strategy": "no_buffer"},
        {"mamba_radix_cache_strategy": "extra_buffer"},
    ),
    "planned-tracks": (
        {"mamba_scheduler_strategy": "no_buffer"},
        {"mamba_radix_cache_strategy": "extra_buffer_lazy"},
    ),
    "breakable-prefills": ("graphs('full')", "graphs('breakable')"),
    "captured-extends": (
        {"SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND": "1"},
        {"SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND": "0"},
    ),
    "known-gdn-kernel": (
        {"linear_attn_backend": "cutedsl"},
        {"linear_attn_backend": "cutedsl", "linear_attn_prefill_backend": "triton"},
    ),
    "plain-rotary": ("Model(rope_scaling={'mrope_section': [8]})", "Model()"),
    "window-pool": ("Model(of='DeepseekV4ForCausalLM', pool=True)", "Model(pool=True)"),
    "poolless-windows": ("Model(of='GptOssForCausalLM')", "Model(of='Gemma3ForCausalLM')"),
    "triton-only": (attention("fa3", decode="triton"), attention("triton")),
    "frozen-drafts": (_EAGLE, {"speculative_algorithm": "FROZEN_KV_MTP"}),
    "drafts-of-one": ({**_DRAFTS, "attn_dp_size": 2}, {**_DRAFTS, "attn_dp_size": 1}),
    "single-drafts": ({"speculative_eagle_topk": 4}, {"speculative_eagle_topk": 1}),
    "fa3": (
        attention("triton", speculative_draft="flashinfer"),
        attention("triton", prefill="fa3"),
    ),
    "fa3-prefills": (attention("fa3", prefill="triton"), attention("triton", prefill="fa3")),
    "triton": (
        {"attention_backend": "triton", **dict.fromkeys(BACKENDS, "fa3")},
        attention("fa3", decode="triton"),
    ),
    "lengths-on-gpu": (attention("fa3"), attention("fa3", speculative_draft="trtllm_mla")),
    "two-backends": (attention("fa3", prefill="fa3"), attention("fa3", decode="triton")),
    "one-backend": (attention("fa3", prefill="triton"), attention("fa3", decode="fa3")),
    "known-pool-backend": (
        attention("fa3", decode="flashinfer"),
        {"attention_backend": "flashinfer", **dict.fromkeys(BACKENDS, "triton")},
    ),
    "request-limit": ({"max_running_requests": None}, {"max_running_requests": 24}),
    "stock-window-ratio": (
        {"swa_full_tokens_ratio": 0.8, "_swa_full_tokens_ratio_explicitly_set": True},
        {"swa_full_tokens_ratio": 0.8, "_swa_full_tokens_ratio_explicitly_set": False},
    ),
    "several-requests": ({"max_running_requests": 1}, {"max_running_requests": 2}),
    "no-storage": (
        {"hicache_storage_backend": "file", "enable_hierarchical_cache": True},
        {"hicache_storage_backend": "file"},
    ),
    "known-host-cache": ({**_HOST_CACHE, "hicache_storage_backend": "file"}, _HOST_CACHE),
    "tokens-per-state": ({}, {"SGLANG_PERF_PATCHES_TOKENS_PER_STATE": "512"}),
    "windows": (
        "Model(of='DeepseekV4ForCausalLM', pool=True, sliding_window=8)",
        "Model(sliding_window=8)",
    ),
    "no-chunks": ("Model(chunks=True)", "Model()"),
}
"""Use → a server that is known to lack it, and one that has it; a text is evaluated there."""
_OF_MODEL = {
    *("mla", "states", "delta-nets", "mamba2", "lightning", "minimax-kernel", "windows"),
    *("window-pool", "poolless-windows", "plain-rotary", "no-chunks"),
}
_OF_ATTENTION = {"fa3", "trtllm-mla", "lengths-on-gpu", "two-backends", "one-backend"}


GATES = {
    *("known-gdn-kernel", "known-pool-backend", "one-backend", "no-storage", "known-host-cache"),
    *("tokens-per-state", "request-limit", "stock-window-ratio", "drafts-of-one"),
}
"""The uses without which a patch would have an effect that nobody tested."""


def test_each_use_is_read(server: Throwaway) -> None:
    assert set(USES) == {use.name for use in FEATURES.uses}
    script = """
import sglang.srt.a as a, sglang.srt.server_args as arguments
def publish_one(given):
    given = eval(given) if isinstance(given, str) else given
    if isinstance(given, Model):
        given = {"_model_config": given}
    for name in ENVIRONMENT:
        os.environ.pop(name, None)
    made = arguments.ServerArgs()
    for name, value in given.items():
        if name.isupper():
            os.environ[name] = value
        else:
            setattr(made, name, value)
    arguments.publish(made)
given = [each for pair in USES.values() for each in pair if isinstance(each, dict)]
ENVIRONMENT = {name for each in given for name in each if name.isupper()}
for name, (without, having) in USES.items():
    use(only(STEP, name))
    os.environ["SGLANG_USE_MLX"] = str(name == "torch").lower()
    publish_one(without)
    ours.activate("all")
    lost = "gated" if name in GATES else "not needed"
    assert state()[0] == lost and a.Worker().step(1) == 2, (name, state())
    if name in GATES:  # for good
        ours.deactivate()
    os.environ["SGLANG_USE_MLX"] = str(name == "mlx").lower()
    publish_one(having)
    if name in GATES:
        ours.activate("all")
    assert state() == ("live", "") and a.Worker().step(1) == 102, (name, state())
    ours.deactivate()
    if name in UNKNOWN:
        ours.activate("all")
        publish()
        assert state() == ("live", ""), (name, "nobody says what the model or the backend is")
        ours.deactivate()
"""
    given = {"USES": USES, "GATES": GATES, "UNKNOWN": _OF_MODEL | _OF_ATTENTION}
    server.play("".join(f"{name} = {value!r}\n" for name, value in given.items()) + script)


KERNELS = (
    # --linear-attn-prefill-backend, --linear-attn-backend, --mamba-ssm-dtype, chunk, GPU: kernel
    (None, "triton", None, 8192, "9.0", "triton"),
    (None, "cutedsl", None, 8192, "9.0", "cutedsl"),
    ("triton", "cutedsl", "bfloat16", 8192, "10.0", "triton"),
    ("flashinfer", "triton", "float32", 8192, "9.0", "flashinfer"),
    ("flashinfer", "triton", "bfloat16", 8192, "9.0", "flashinfer-pool"),
    (None, "flashinfer", None, 8192, "12.0", "flashinfer-pool"),
    # Stock's own default on a Blackwell.
    (None, "triton", "bfloat16", 8192, "10.0", "flashinfer-pool"),
    (None, "triton", "bfloat16", 16384, "10.3", "triton"),
    (None, "triton", "bfloat16", 8192, "9.0", "triton"),
    (None, "triton", None, 8192, "10.0", "triton"),
)


@pytest.mark.parametrize("case", KERNELS)
def test_the_prefill_kernel_of_delta_nets_is_read_as_stock_chooses_it(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Any, ...]
) -> None:
    *given, gpu_is, kernel = case
    monkeypatch.setattr(gpu, "capability", lambda: gpu_is)
    names = ("linear_attn_prefill_backend", "linear_attn_backend", "mamba_ssm_dtype")
    arguments = zip((*names, "chunked_prefill_size"), given, strict=True)
    server = published.Published(SimpleNamespace(**dict(arguments)))
    assert server.read("gdn.prefill") == kernel
    (known,) = (use for use in FEATURES.uses if use.name == "known-gdn-kernel")
    assert known.is_there(server) == (kernel in {"triton", "flashinfer"})


def test_under_strict_what_is_not_needed_is_no_loss(server: Throwaway) -> None:
    done = server.play("""
import sglang.srt.a, sglang.srt.server_args as arguments
use(only(proven(STEP), "speculation"))
ours.activate("one.step", strict=True)
publish(enable_lora=True)
assert state()[0] == "not needed"
""")
    assert not done.stderr
