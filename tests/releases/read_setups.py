"""Publish servers as a release does, and say what is read of each: ``python read_setups.py``.

The release is on PYTHONPATH. Prints one JSON line a server: its ``name``; the features that are
``on``; the uses that it is known to be ``having`` and ``lacking``; and how often the publication
was ``seen``; or, where the release refuses its arguments, ``refused`` and why. At last a line for
each of some models, with what is read of the release's ``model`` configuration.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.proof import stubs

stubs.lend()

from feature_examples import example  # noqa: E402
from sglang_perf_patches.live import published  # noqa: E402
from sglang_perf_patches.live.dispatch_table import DispatchTable  # noqa: E402
from sglang_perf_patches.live.imports import Watched  # noqa: E402
from sglang_perf_patches.model.setups import FEATURES  # noqa: E402

MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}

IMAGES = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    **{name: value for name, value in MODEL.items() if name not in ("architectures", "model_type")},
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "vision_config": {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 64},
}
"""A model that takes images, though no argument says so."""
LAYERS = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8}
DELTA = {f"linear_{name}": 16 for name in ("key_head_dim", "value_head_dim")}
DELTA |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3ForCausalLM": {},
    "LlamaForCausalLM": {"model_type": "llama"},
    "Qwen3NextForCausalLM": {"model_type": "qwen3_next", **DELTA, **EXPERTS},
    "GptOssForCausalLM": {"model_type": "gpt_oss", "sliding_window": 128, **LAYERS},
    "Gemma3ForCausalLM": {"model_type": "gemma3_text", "sliding_window": 512, **LAYERS},
    "DeepseekV2ForCausalLM": {"model_type": "deepseek_v2", **LATENT, "v_head_dim": 8},
}
"""Architecture → what its configuration has that `MODEL` lacks."""


_seen: list[object] = []


def main() -> None:
    """Publish a plain server, and one for the example of each feature."""
    import sglang.srt.server_args  # noqa: F401

    Watched(DispatchTable(), lambda: _seen.append(None)).begin(*published._publishing())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        servers: dict[str, tuple[Any, Any]] = {
            "plain": ({}, ()),
            "--attn-dp-size": ({"attn_dp_size": 2, "tp_size": 2}, ("attn_dp_size",)),
        }
        with_images = Path(folder, "images")
        with_images.mkdir()
        (with_images / "config.json").write_text(json.dumps(IMAGES))
        print(json.dumps({"name": "images", **_read(str(with_images), {}, ())}), flush=True)
        servers |= {each.name: (example(each), each.arguments()) for each in FEATURES.all}
        for name, (given, switches) in servers.items():
            print(json.dumps({"name": name, **_read(folder, given, switches)}), flush=True)
        for name, config in MODELS.items():
            place = Path(folder, name)  # a release reads the configuration of a folder once
            place.mkdir()
            whole = {**MODEL, "architectures": [name], **config}
            place.joinpath("config.json").write_text(json.dumps(whole))
            print(json.dumps({"name": name, "model": _answers(str(place))}), flush=True)


def _read(model: str, given: Any, switches: Any) -> dict[str, Any]:
    from sglang.srt import server_args

    _seen.clear()
    known = fields(server_args.ServerArgs)
    some = {name: value for name, value in given.items() if name in known}
    if switches and not set(some) & set(switches):
        return {"absent": True}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            arguments = server_args.ServerArgs(model_path=model, device="cpu", **some)
            server_args.set_global_server_args_for_scheduler(arguments)
    except (Exception, SystemExit) as error:
        return {"refused": f"{type(error).__name__}: {error}"[:200]}
    setup = FEATURES.setup(published.published())
    about = {"on": dict(setup.on), "lacking": sorted(setup.lacking), "having": sorted(setup.having)}
    return {**about, "seen": len(_seen)}


def _answers(folder: str) -> dict[str, bool]:
    """What is read of the release's own configuration of a model."""
    from sglang.srt.configs.model_config import ModelConfig

    with contextlib.redirect_stdout(io.StringIO()):
        kept = SimpleNamespace(_model_config=ModelConfig(folder))
    names = ("has_mla", "has_states", "has_delta_nets", "has_other_states", "has_windows")
    return {name: published.of_model(kept, name) for name in names}


def fields(kind: Any) -> set[str]:
    return set(getattr(kind, "__dataclass_fields__", ())) | set(
        getattr(kind, "__struct_fields__", ())
    )


if __name__ == "__main__":
    sys.exit(main())
