"""A throwaway server that publishes its arguments in each of the ways of the releases."""

from throwaway import PATCHES, PUBLISHING, Throwaway

from sglang_perf_patches.model import setups

_USED = {name for use in setups.FEATURES.uses for name in (*use.off, *use.on) if not name.isupper()}
BACKENDS = {f"{phase}_attention_backend" for phase in ("prefill", "decode", "speculative_draft")}
_USED |= {*BACKENDS, "attention_backend", "cuda_graph_config"}
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

NEW = f"""{OLD.partition("_published")[0]}
def publish(server_args, **resolved):
    from sglang.srt import runtime_context
    runtime_context._CONTEXT.set_server_args(server_args, resolved)
"""
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
    throwaway.put("throwaway_patches.py", PATCHES + SERVED)
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
