"""Publish servers as a release does, and say what is read of each: ``python read_setups.py``.

The release is on PYTHONPATH. Prints one JSON line a server: its ``name``; the features that are
``on``; the uses that it is known to be ``having`` and ``lacking``; and how often the publication
was ``seen``; or, where the release refuses its arguments, ``refused`` and why.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from sglang_perf_patches.proof import lent

lent.lend()

from sglang_perf_patches.live import published  # noqa: E402
from sglang_perf_patches.live.board import Board  # noqa: E402
from sglang_perf_patches.live.imports import Imports  # noqa: E402
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

_seen: list[object] = []


def main() -> None:
    """Publish a plain server, and one for the example of each feature."""
    import sglang.srt.server_args  # noqa: F401

    published.Watch(Board(), lambda: _seen.append(None)).begin(Imports(lambda _: None))
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
        servers |= {each.name: (each.example, each.arguments()) for each in FEATURES.all}
        for name, (given, switches) in servers.items():
            print(json.dumps({"name": name, **_read(folder, given, switches)}), flush=True)


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


def fields(kind: Any) -> set[str]:
    return set(getattr(kind, "__dataclass_fields__", ())) | set(
        getattr(kind, "__struct_fields__", ())
    )


if __name__ == "__main__":
    sys.exit(main())
