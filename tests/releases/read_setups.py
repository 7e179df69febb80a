"""Publish servers as a release does, and say what is read of each: ``python read_setups.py``.

The release is on PYTHONPATH. Prints one JSON line a server: its ``name``; the features that are
``on``; the uses that it is known to be ``having`` and ``lacking``; and how often the publication
was ``seen``; or, where the release refuses its arguments, ``refused`` and why. At last a line for
each of some models, with what is read of the release's ``model`` configuration.
"""

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

import configurations  # noqa: E402
from feature_examples import example  # noqa: E402
from sglang_perf_patches.live import published  # noqa: E402
from sglang_perf_patches.model import computed  # noqa: E402
from sglang_perf_patches.model.setups import FEATURES  # noqa: E402

MODEL = {**configurations.MODELS["plain"], "torch_dtype": "bfloat16"}
IMAGES = {
    **MODEL,
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
    "vision_config": {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 256},
}
"""A model that takes images, though no argument says so."""
MODELS = ("plain", "next", "falcon", "ling", "windows", "gemma", "latent")
"""Those of `configurations` of which a line tells what is read."""

_seen: list[object] = []


def main() -> None:
    """Publish a plain server, and one for the example of each feature."""
    import sglang.srt.server_args  # noqa: F401

    published.Watched(lambda: _seen.append(None)).hook(*published.publisher())
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
        for name in MODELS:
            place = configurations.write(Path(folder), name)  # a folder's is read once
            config = json.loads((place / "config.json").read_text())
            config.pop("quantization_config", None)  # of a GPU
            (place / "config.json").write_text(json.dumps(config))
            print(json.dumps({"name": f"{name} model", "model": _answers(str(place))}), flush=True)


def _read(model: str, given: Any, switches: Any) -> dict[str, Any]:
    _seen.clear()
    some = {name: value for name, value in given.items() if name in fields()}
    if switches and not set(some) & set(switches):
        return {"absent": True}
    if refused := publish(model, **some):
        return {"refused": refused}
    setup = FEATURES.setup(published.published())
    about = {"on": dict(setup.on), "lacking": sorted(setup.lacking), "having": sorted(setup.having)}
    return {**about, "seen": len(_seen)}


def _answers(folder: str) -> dict[str, bool]:
    from sglang.srt.configs.model_config import ModelConfig

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            kept = SimpleNamespace(_model_config=ModelConfig(folder))
    except KeyError:
        return {}  # 0.5.9 can't read Ling's with transformers of today
    names = [name for name in computed.ANSWERS if name.startswith("has_")]
    return {name: computed.of_model(kept, name) for name in names}


def fields() -> set[str]:
    from sglang.srt.server_args import ServerArgs

    kinds = ("__dataclass_fields__", "__struct_fields__")
    return {name for kind in kinds for name in getattr(ServerArgs, kind, ())}


def publish(model: str, **given: Any) -> str:
    """Have the release publish a server in this process; why not, if it refuses that."""
    from sglang.srt import server_args

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            arguments = server_args.ServerArgs(model_path=model, **{"device": "cpu", **given})
            server_args.set_global_server_args_for_scheduler(arguments)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


if __name__ == "__main__":
    sys.exit(main())
