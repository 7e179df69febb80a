"""A patch is gated on a server with anything on that it was not proven with: stock's code runs.

The throwaway package publishes its server's arguments in each of the ways of the releases.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from throwaway import BEGINNING, PUBLISHING, Throwaway

from sglang_perf_patches import gpu
from sglang_perf_patches.live import published
from sglang_perf_patches.model import setups, uses

_USED = {name for use in uses.USES for name in (*use.off, *use.on) if not name.isupper()}
_BACKENDS = {f"{phase}_attention_backend" for phase in ("prefill", "decode", "speculative_draft")}
_USED |= {*_BACKENDS, "attention_backend", "cuda_graph_config"}
_USED |= {"linear_attn_backend", "linear_attn_prefill_backend", "mamba_ssm_dtype"}
FIELDS = sorted(name for name in setups.FEATURES._named | _USED if name.isidentifier())
OLD = f"""
from dataclasses import dataclass
from typing import Any

@dataclass
class ServerArgs:
    {"; ".join(f"{name}: Any = None" for name in FIELDS)}
    brand_new: Any = None
    port: int = 30000

_published = None

{PUBLISHING}
publish = set_global_server_args_for_scheduler
"""
"""Up to 0.5.14; the arguments are resolved in place."""

NEW = (
    OLD.partition("_published")[0]
    + """
def publish(server_args, **resolved):
    from sglang.srt import runtime_context
    runtime_context._CONTEXT.set_server_args(server_args, resolved)
"""
)
CONTEXT = """
import sys

def half_way():
    getattr(sys.modules["__main__"], "half_way", lambda: None)()

class Group:
    pass

class Parallel:
    attn_dp_enabled = property(lambda self: self.held)
    held = False

class RuntimeContext:
    def __init__(self):
        self._server_args, self.groups, self.parallel = None, {}, Parallel()

    @property
    def server_args(self):
        if self._server_args is None:
            raise ValueError("Global server args is not set yet!")
        return self._server_args

    def set_server_args(self, server_args, resolved):
        self._server_args = server_args
        half_way()
        inner, outer = Group(), Group()
        vars(inner).update(vars(server_args) | resolved)
        outer.inner = inner
        self.groups = {"all": outer}

    def config_bag(self, name):
        return self.groups[name]

half_way()
_CONTEXT = RuntimeContext()

def get_context():
    return _CONTEXT
"""
GROUPS = """
def namespace_of(kind):
    return {name: "all.inner" for name in kind.__dataclass_fields__}
"""
UTILS = "\n".join(f"def {name}():\n    return False\n" for name in FIELDS if name.startswith("is_"))

SERVED = """
import dataclasses
import sglang_perf_patches as ours

def publish(**given):
    import sglang.srt.server_args as arguments
    arguments.publish(arguments.ServerArgs(**given))

def proven(patch, *features):
    return dataclasses.replace(patch, proven_with=dict.fromkeys(features, "a check"))

def only(patch, *uses):
    return dataclasses.replace(patch, only_with=uses)

class Model:
    def __init__(
        self, architecture="MHA", states=False, kind="Text", of="One", pool=False, chunks=False,
        whole={}, **text
    ):
        class Arch:
            name = architecture
        kind = type(kind, (), {"mamba2_cache_params": None} if states else {})
        self.hf_text_config = kind()
        vars(self.hf_text_config).update(text)
        self.hf_config = type("Whole", (), {"architectures": [of], **whole})()
        self.attention_arch, self.is_hybrid_swa = Arch, pool
        self.is_local_attention_model = chunks

def graphs(backend):
    phase = type("Phase", (), {"backend": backend})
    return {"cuda_graph_config": type("Graphs", (), {"prefill": phase})}

def state(patch="one.step"):
    found = ours.activate().of(patch)
    return found.state, found.reason
"""


def serve(throwaway: Throwaway, release: str) -> Throwaway:
    """Make the throwaway package publish as ``old`` releases do, or as ``new`` ones do."""
    throwaway.put("served.py", SERVED)
    throwaway.put("sglang/srt/utils.py", UTILS)
    if release == "old":
        throwaway.put("sglang/srt/server_args.py", OLD)
    else:
        throwaway.put("sglang/srt/runtime_context.py", CONTEXT)
        throwaway.put("sglang/srt/arg_groups/__init__.py", "")
        throwaway.put("sglang/srt/arg_groups/arg_utils.py", GROUPS)
        imports = "import sglang.srt.runtime_context, sglang.srt.arg_groups.arg_utils\n"
        throwaway.put("sglang/srt/server_args.py", imports + NEW)
    return throwaway


@pytest.fixture(params=["old", "new"])
def server(request: pytest.FixtureRequest, throwaway: Throwaway) -> Throwaway:
    return serve(throwaway, request.param)


def test_gated_when_the_server_publishes(server: Throwaway) -> None:
    server.play("""
from served import *
import sglang.srt.a as a, sglang.srt.server_args as arguments
use(proven(STEP, "pages"), proven(TEN, "pages", "lora"), HELPER)
ours.activate("all")
assert state() == ("live", "")
publish(page_size=64)
assert state() == ("live", "") and a.Worker().step(1) == 1020
publish(page_size=64, enable_lora=True)
# At once: the reply below asks for no look.
assert engine.report().of("one.step").state == "gated"
assert a.Worker().step(1) == 20
assert state() == ("gated", "LoRA is on (--enable-lora): this patch was not tested with that")
assert state("one.ten") == state("two.helper") == ("live", "")
publish()
assert state()[0] == "gated", "for good: what it has done so far is stock's"
ours.deactivate()
assert a.Worker().step(1) == 2
""")


def test_gated_before_it_acts_if_the_server_has_published(server: Throwaway) -> None:
    server.play("""
from served import *
import sglang.srt.server_args as arguments
publish(enable_lora=True)
use(proven(STEP))
def step(patching):
    raise AssertionError("it was installed")
installs.step = step
ours.activate("all")
import sglang.srt.a as a
assert state() == ("gated", "LoRA is on (--enable-lora): this patch was not tested with that")
assert a.Worker().step(1) == 2
""")


def test_gated_though_its_modules_are_not_imported_yet(server: Throwaway) -> None:
    server.play("""
from served import *
use(proven(STEP))
ours.activate("all")
import sglang.srt.server_args as arguments
publish(enable_lora=True)
assert engine.report().of("one.step").state == "gated"
import sglang.srt.a as a
assert a.Worker().step(1) == 2
""")


def test_nothing_published_gates_nothing_but_the_platform(server: Throwaway) -> None:
    server.play("""
from served import *
use(proven(STEP))
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args
assert state() == ("live", "") and a.Worker().step(1) == 102
import sglang.srt.utils as utils
utils.is_hip = lambda: True
assert state() == (
    "gated", "this server runs on AMD GPUs (HIP): this patch was not tested with that"
)
assert a.Worker().step(1) == 2
""")


def test_what_is_resolved_later_is_seen_at_the_next_look(server: Throwaway) -> None:
    server.play("""
from served import *
use(proven(STEP))
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args as arguments
given = arguments.ServerArgs(kv_cache_dtype="auto")
arguments.publish(given)
assert state() == ("live", "")
given.kv_cache_dtype = "fp8_e4m3"
if "sglang.srt.runtime_context" in sys.modules:
    context = sys.modules["sglang.srt.runtime_context"].get_context()
    assert state() == ("live", ""), "what was given does not count where a group has it"
    context.groups["all"].inner.kv_cache_dtype = "fp8_e4m3"
reason = "the KV cache is quantised (--kv-cache-dtype): this patch was not tested with that"
assert state() == ("gated", reason), state()
assert a.Worker().step(1) == 2
""")


def test_only_a_decode_server_keeps_what_it_retracts_in_tensors(server: Throwaway) -> None:
    """Any server of 0.5.23 has the argument resolved to that."""
    server.play("""
from served import *
use(proven(STEP, "decode-server"))
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args as arguments
kept = {"disaggregation_decode_retraction_backup": "cpu_tensor"}
for mode in (None, "null"):
    publish(disaggregation_mode=mode, **kept)
    assert state() == ("live", "") and a.Worker().step(1) == 102
publish(disaggregation_mode="decode", **kept)
assert state()[0] == "gated" and "kept in tensors" in state()[1], state()
assert a.Worker().step(1) == 2
""")


COMPUTED = {
    "lambda self: True": "data-parallel attention is on",
    "broken": "whether data-parallel attention is on can't be read (RuntimeError: not written)",
}


@pytest.mark.parametrize("server", ["new"], indirect=True)
@pytest.mark.parametrize("how", COMPUTED)
def test_what_the_release_computes_counts_or_what_cannot_be_read(
    server: Throwaway, how: str
) -> None:
    server.play(f"""
from served import *
use(proven(STEP))
ours.activate("all")
import sglang.srt.a as a, sglang.srt.runtime_context as context
publish(enable_dp_attention=False)
assert state() == ("live", "")
def broken(self):
    raise RuntimeError("not written\\nyet")
context.Parallel.attn_dp_enabled = property({how})
publish(enable_dp_attention=False)
reason = "{COMPUTED[how]}: this patch was not tested with that"
assert state() == ("gated", reason), state()
assert a.Worker().step(1) == 2
""")


@pytest.mark.parametrize("server", ["new"], indirect=True)
def test_a_server_that_cannot_be_read_at_all_gates(server: Throwaway) -> None:
    server.play("""
from served import *
use(proven(STEP), HELPER)
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args as arguments, sglang.srt.runtime_context as context
def broken():
    raise RuntimeError("not ready")
context.get_context, kept = broken, context.get_context
kept().set_server_args(arguments.ServerArgs(), {})
word, reason = state()
assert word == "gated", (word, reason)
assert "can't be read (RuntimeError: not ready): this patch was not tested with" in reason, reason
assert a.Worker().step(1) == 2
assert state("two.helper") == ("live", ""), "what asks for no set-up stays"
""")


@pytest.mark.parametrize("server", ["new"], indirect=True)
def test_what_another_thread_is_at_work_on_gates_nothing(server: Throwaway) -> None:
    """It looks while what publishes is being imported, and while arguments are being published."""
    server.play("""
from served import *
from threading import Thread
seen = []
def half_way():
    looking = Thread(target=lambda: seen.append(state()))
    looking.start()
    looking.join(300)
use(proven(STEP, "pages"))
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args as arguments
publish(page_size=64)
assert seen == [("live", "")] * 2, seen
assert state() == ("live", ""), state()
publish(enable_lora=True)
assert seen == [("live", "")] * 3, seen
assert state() == ("gated", "LoRA is on (--enable-lora): this patch was not tested with that")
""")


def test_an_argument_that_nobody_classed_gates_where_it_is_given(server: Throwaway) -> None:
    server.play("""
from served import *
use(proven(STEP))
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args as arguments
publish(port=1)
assert state() == ("live", "")
publish(brand_new=7)
reason = "the server has brand_new, which is unknown: this patch was not tested with that"
assert state() == ("gated", reason), state()
assert a.Worker().step(1) == 2
""")


def test_a_patch_that_needs_a_gated_one_is_gated_too(server: Throwaway) -> None:
    server.play("""
from served import *
import sglang.srt.a as a, sglang.srt.b as b, sglang.srt.server_args as arguments
both = dataclasses.replace(BOTH, requires=("one.step",))
use(proven(STEP), proven(both, "lora"))
ours.activate("all")
assert a.Worker().step(1) == 202
publish(enable_lora=True)
assert state()[0] == state("two.both")[0] == "gated", (state(), state("two.both"))
assert "one.step" in state("two.both")[1]
assert (a.Worker().step(1), b.Caller().call(1)) == (2, 2)
ours.deactivate()
ours.activate("all")
assert state("two.both")[0] == "gated" and "one.step" in state("two.both")[1]
""")


def test_what_a_server_has_no_use_for_is_neither_live_nor_gated(server: Throwaway) -> None:
    """Not gated either, though it was not proven with what is on."""
    server.play("""
from served import *
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
from served import *
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
from served import *
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


_HOST_CACHE = {
    "hicache_write_policy": "write_through",
    "hicache_host_memory_mode": "cache",
    "hicache_mem_layout": "page_first",
    "hicache_io_backend": "kernel",
}
USES = {
    "mlx": ({}, {}),
    "torch": ({}, {}),
    "speculation": ({}, {"speculative_algorithm": "EAGLE"}),
    "host-drafts": ({"speculative_algorithm": "EAGLE"}, {"speculative_algorithm": "NGRAM"}),
    "decode-server": ({"disaggregation_mode": "prefill"}, {"disaggregation_mode": "decode"}),
    "prefills": ({"disaggregation_mode": "decode"}, {"disaggregation_mode": "null"}),
    "prefix-cache": ({"disable_radix_cache": True}, {"disable_radix_cache": False}),
    "one-token-pages": ({"page_size": 64}, {"page_size": 1}),
    "host-cache": ({}, {"enable_hierarchical_cache": True}),
    "ranks": ({"tp_size": 1}, {"tp_size": 2}),
    "one-host": ({"nnodes": 2}, {"nnodes": 1}),
    "polling": ({"sleep_on_idle": True}, {"sleep_on_idle": False}),
    "own-processes": ({"use_ray": True}, {"use_ray": False}),
    "trtllm-mla": (
        {"attention_backend": "fa3"},
        {"attention_backend": "fa3", "decode_attention_backend": "trtllm_mla"},
    ),
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
    "triton-alone": (
        {"attention_backend": "fa3", "decode_attention_backend": "triton"},
        {"attention_backend": "triton"},
    ),
    "frozen-drafts": (
        {"speculative_algorithm": "EAGLE"},
        {"speculative_algorithm": "FROZEN_KV_MTP"},
    ),
    "drafts-of-one": (
        {"speculative_algorithm": "EAGLE", "dp_size": 1, "attn_dp_size": 2},
        {"speculative_algorithm": "EAGLE", "dp_size": 1, "attn_dp_size": 1},
    ),
    "single-drafts": ({"speculative_eagle_topk": 4}, {"speculative_eagle_topk": 1}),
    "fa3": (
        {"attention_backend": "triton", "speculative_draft_attention_backend": "flashinfer"},
        {"attention_backend": "triton", "prefill_attention_backend": "fa3"},
    ),
    "fa3-prefills": (
        {"attention_backend": "fa3", "prefill_attention_backend": "triton"},
        {"attention_backend": "triton", "prefill_attention_backend": "fa3"},
    ),
    "triton": (
        {"attention_backend": "triton", **dict.fromkeys(_BACKENDS, "fa3")},
        {"attention_backend": "fa3", "decode_attention_backend": "triton"},
    ),
    "lengths-on-gpu": (
        {"attention_backend": "fa3"},
        {"attention_backend": "fa3", "speculative_draft_attention_backend": "trtllm_mla"},
    ),
    "two-backends": (
        {"attention_backend": "fa3", "prefill_attention_backend": "fa3"},
        {"attention_backend": "fa3", "decode_attention_backend": "triton"},
    ),
    "one-backend": (
        {"attention_backend": "fa3", "prefill_attention_backend": "triton"},
        {"attention_backend": "fa3", "decode_attention_backend": "fa3"},
    ),
    "known-pool-backend": (
        {"attention_backend": "fa3", "decode_attention_backend": "flashinfer"},
        {"attention_backend": "flashinfer", **dict.fromkeys(_BACKENDS, "triton")},
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
    "known-host-cache": (
        {**_HOST_CACHE, "hicache_storage_backend": "file"},
        _HOST_CACHE,
    ),
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
    assert set(USES) == {use.name for use in uses.USES}
    script = """
from served import *
import sglang.srt.a as a, sglang.srt.server_args as arguments
def publish_one(given):
    given = eval(given) if isinstance(given, str) else given
    is_model = isinstance(given, Model)
    for name in ENVIRONMENT:
        os.environ.pop(name, None)
    fields = {} if is_model else {name: given[name] for name in given if not name.isupper()}
    if not is_model:
        os.environ.update({name: given[name] for name in given if name.isupper()})
    made = arguments.ServerArgs(**fields)
    if is_model:
        made._model_config = given
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


@pytest.mark.parametrize(("prefill", "base", "dtype", "chunk", "gpu_is", "kernel"), KERNELS)
def test_the_prefill_kernel_of_delta_nets_is_read_as_stock_chooses_it(
    monkeypatch: pytest.MonkeyPatch,
    prefill: str | None,
    base: str,
    dtype: str | None,
    chunk: int,
    gpu_is: str,
    kernel: str,
) -> None:
    monkeypatch.setattr(gpu, "capability", lambda: gpu_is)
    names = ("linear_attn_prefill_backend", "linear_attn_backend", "mamba_ssm_dtype")
    given = dict(zip(names, (prefill, base, dtype), strict=True))
    server = published.Published(SimpleNamespace(**given, chunked_prefill_size=chunk))
    assert server.read("gdn.prefill") == kernel
    (known,) = (use for use in uses.USES if use.name == "known-gdn-kernel")
    assert known.is_there(server) == (kernel in {"triton", "flashinfer"})


STRICTLY = {
    "when the server publishes": """
ours.activate(CHOSEN, strict=True)
import sglang.srt.a
publish(enable_lora=True)
""",
    "before it acts": """
publish(enable_lora=True)
ours.activate(CHOSEN, strict=True)
import sglang.srt.a
""",
    "by its install function": """
use(declare("one.step", install="gates", targets=(f"{A}:Worker.step",)), HELPER)
ours.activate(CHOSEN, strict=True)
import sglang.srt.a
""",
    "in a call": """
def step(patching):
    def make(inner):
        def step(self, x):
            patching.gate("not for this argument")
            return inner(self, x)
        return step
    patching.override(f"{A}:Worker.step", make)
installs.step = step
ours.activate(CHOSEN, strict=True)
import sglang.srt.a as a
assert a.Worker().step(1) == 2
ours.activate()
""",
}


@pytest.mark.parametrize("server", ["new"], indirect=True)
@pytest.mark.parametrize("how", STRICTLY)
def test_under_strict_a_gate_of_what_was_named_ends_with_one_line(
    server: Throwaway, how: str
) -> None:
    script = f"""{BEGINNING}
from served import *
import sglang.srt.server_args
CHOSEN = os.environ["CHOSEN"]
use(proven(STEP), HELPER)
{STRICTLY[how]}
print("served", state()[0])
"""
    for chosen in ("one.step", "one"):
        done = server.process(script, CHOSEN=chosen)
        assert (done.returncode, done.stdout) == (1, ""), (chosen, done.stderr)
        assert done.stderr.startswith("sglang-perf-patches: one.step is gated: "), done.stderr
        assert done.stderr.count("\n") == 1
    for chosen in ("all", "two"):
        done = server.run(script, CHOSEN=chosen)
        assert done.stdout == f"served {'gated' if chosen == 'all' else 'off'}\n"
        assert "one.step is gated" not in done.stderr


@pytest.mark.parametrize("ends_in", ["main", "record"])
def test_under_strict_no_other_thread_logs_a_gate_or_goes_on(
    throwaway: Throwaway, ends_in: str
) -> None:
    """However long the end takes: one line, and no other thread does anything meanwhile."""
    done = serve(throwaway, "new").process(f"""{BEGINNING}
from served import *
import sglang.srt.server_args
use(proven(STEP))
from sglang_perf_patches.live.registry import Registry
from sglang_perf_patches.telemetry.recorder import _Recorder
look_again, tell, writing = Registry.look_again, Registry._tell, threading.Event()
try_to_write = _Recorder.try_to_write
def is_main():
    return threading.current_thread() is threading.main_thread()
def slow(self):
    time.sleep(4 if self.loss else 0)
    tell(self)
def late(self):
    if is_main():
        time.sleep(1)
    look_again(self)
def busy(self):
    if not is_main():
        writing.set()
        time.sleep(1)
    return try_to_write(self)
Registry._tell = slow
if {ends_in == "record"}:
    Registry.look_again = late
else:
    _Recorder.try_to_write = busy
ours.activate("one.step", strict=True)
import sglang.srt.a
if {ends_in == "main"}:
    assert writing.wait(60)  # the record's thread has looked, and writes next
publish(enable_lora=True)
print("served", state())
""")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.startswith("sglang-perf-patches: one.step is gated: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_under_strict_what_is_not_needed_is_no_loss(server: Throwaway) -> None:
    done = server.play("""
from served import *
import sglang.srt.a, sglang.srt.server_args as arguments
use(only(proven(STEP), "speculation"))
ours.activate("one.step", strict=True)
publish(enable_lora=True)
assert state()[0] == "not needed"
""")
    assert not done.stderr


def test_off_again_what_publishes_is_stocks_own(server: Throwaway) -> None:
    server.play("""
from served import *
import sglang.srt.a, sglang.srt.server_args as arguments
context = sys.modules.get("sglang.srt.runtime_context")
def held():
    if context:
        return context.RuntimeContext.set_server_args.__code__
    return arguments.set_global_server_args_for_scheduler.__code__
before = held()
use(proven(STEP))
ours.activate("all")
assert held() is not before
ours.deactivate()
assert held() is before
""")


def test_each_argument_of_each_feature_gates(server: Throwaway) -> None:
    server.play("""
from served import *
import sglang.srt.a as a, sglang.srt.utils as utils
from sglang_perf_patches.model.setups import FEATURES
tested = 0
for feature in FEATURES.all:
    given = [(name, value) for name, values in feature.on.items() for value in values]
    given += [(name, "something") for name in [*feature.off, *feature.changed]]
    given = [(name, value) for name, value in given if name.isidentifier()]
    where = {name: values[0] for name, values in feature.only.items()}
    others = [other.name for other in FEATURES.all if other is not feature]
    # A gate is for good, so the patch is activated anew for each argument that gates it.
    for features, word, rounds in (
        ([*others, feature.name], "live", [given]),
        (others, "gated", [[each] for each in given]),
    ):
        for published in rounds:
            use(proven(STEP, *features))
            publish()
            ours.activate("all")
            assert state() == ("live", ""), (feature.name, state())
            for name, value in published:
                if name.startswith("is_"):
                    setattr(utils, name, lambda: True)
                publish(**where, **{name: value})
                found = state()
                assert found[0] == word, (feature.name, name, value, found)
                if word == "gated":
                    assert found[1].startswith(feature.clause), (feature.name, name, value, found)
                assert a.Worker().step(1) == (2 if word == "gated" else 102)
                if name.startswith("is_"):
                    setattr(utils, name, lambda: False)
                tested += 1
            ours.deactivate()
assert tested > 200, tested
""")
