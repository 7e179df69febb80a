"""A real stock MLX server under sglang's own bench_serving, stock and patched, in turns of boots.

    python3 tests/benchmarks/mlx/served.py --release 0.5.23 --turns 2

boots the server of the release's environment, by turns without patches and with the set, and sends
each boot the same loads: unique prompts, prompts with a shared prefix, and conversations, each from
1, 4 and 16 clients. It prints one line of JSON for each load of each boot, then one for each load
with both sides and the ratio of their medians. ``--warm`` sends all loads once before, as MLX
compiles kernels at first use. With ``--here`` it takes this interpreter and its PYTHONPATH instead
of an environment, and ``--shape 0.6b`` serves Qwen3-0.6B's shape in bfloat16, as for a GPU.
`results/mlx.md` says what was measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(_ROOT / "tests" / "harness")]

from linux_mlx import tiny_model  # noqa: E402
from linux_mlx.environments import install_bench_client, sglang_environment  # noqa: E402
from linux_mlx.server import running_server  # noqa: E402

_SHIMS = str(_ROOT / "tests" / "harness" / "linux_mlx" / "shims")
_SIDES = ("none", "mlx")
_FIGURES = ("median_ttft_ms", "median_tpot_ms", "output_throughput")
SHAPES = ("tiny", "window", "0.6b", "0.6b-4bit", "quarter-4bit")
"""Random weights: Qwen3 for a CPU, gpt-oss' layers of that size, Qwen3-0.6B, a quarter of it."""

_Load = tuple[str, int, list[str]]
_CHAT = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


@dataclass(frozen=True)
class _Here:
    """This interpreter, in place of an environment."""

    python: Path = Path(sys.executable)


def main() -> int:
    """Boot and load in turns; or, with ``--client``, send one boot its loads."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--each", type=int, default=3, help="requests of a client")
    parser.add_argument("--tokens", type=int, default=256, help="of a prompt")
    parser.add_argument("--replies", type=int, default=32, help="tokens of a reply")
    parser.add_argument("--slots", type=int, default=16_384, help="of the server's pool, in tokens")
    parser.add_argument("--loads", default="", help="comma-separated; all three by default")
    parser.add_argument("--warm", action="store_true", help="send all loads once unmeasured first")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--keep", type=Path, help="keep model and logs here")
    parser.add_argument("--client", nargs=3, metavar=("URL", "MODEL", "OUT"))
    given = parser.parse_args()
    if given.client:
        loads = [load for load in _loads(given) if load[0] in (given.loads or load[0]).split(",")]
        _send(*given.client, loads, loads if given.warm else loads[:1])
        return 0
    with tempfile.TemporaryDirectory(prefix="mlx-served-") as scratch:
        _measure(given, given.keep or Path(scratch))
    return 0


def _measure(given: argparse.Namespace, folder: Path) -> None:
    environment: Any = _Here() if given.here else sglang_environment(given.release)
    if not given.here:
        install_bench_client(environment)
    search = os.environ.get("PYTHONPATH", "").split(os.pathsep) if given.here else []
    paths = [str(_ROOT / "src"), *filter(None, search)]
    model = folder / "model"
    if not model.exists():
        _write_model(environment, model, given.shape, paths)
    given_to_sglang = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("SGLANG_") and name not in {"SGLANG_PERF_PATCHES", "SGLANG_USE_MLX"}
    }
    rows: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    for turn in range(given.turns):
        for side in _SIDES[:: -1 if turn % 2 else 1]:
            log = folder / f"{turn}-{side}.log"
            began = time.perf_counter()
            with running_server(
                environment,
                model,
                selection=side,
                log=log,
                launcher=(environment.python, "-W", "ignore", "-m", "sglang_perf_patches", "run"),
                python_path=[Path(path) for path in paths],
                arguments=("--max-total-tokens", str(given.slots)),
                # MLX for CUDA compiles kernels when they are first used, and keeps them there.
                settings=given_to_sglang | {"MLX_PTX_CACHE_DIR": str(folder / "ptx")},
            ) as server:
                boot = round(time.perf_counter() - began, 1)
                print(json.dumps({"turn": turn, "side": side, "boot, s": boot}), flush=True)
                for row in _loaded(environment, server.url, model, folder, paths):
                    key = row["load"], row["clients"]
                    rows.setdefault(key, {}).setdefault(side, []).append(row)
                    print(json.dumps({"turn": turn, "side": side} | row), flush=True)
    for (load, clients), sides in rows.items():
        if set(sides) == set(_SIDES):
            print(json.dumps({"load": load, "clients": clients} | _compared(sides)), flush=True)


def _compared(sides: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Both sides' medians over the boots, their ratio, and each boot's figures."""
    told: dict[str, Any] = {}
    for figure in _FIGURES:
        each = {side: [row[figure] for row in sides[side]] for side in _SIDES}
        stock, patched = (statistics.median(each[side]) for side in _SIDES)
        told[figure] = {
            "stock": round(stock, 1),
            "patched": round(patched, 1),
            "ratio": round(patched / stock, 3),
            "boots": {side: [round(value, 1) for value in of] for side, of in each.items()},
        }
    replies = {row["replies"] for side in _SIDES for row in sides[side]}
    return told | {"replies": "equal" if len(replies) == 1 else "different"}


def _loaded(
    environment: Any, url: str, model: Path, folder: Path, paths: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Each load's figures, from a client in a process of its own."""
    out = folder / "loads.jsonl"
    out.unlink(missing_ok=True)
    log = folder / "client.log"
    options = [word for word in sys.argv[1:] if word != "--here"]
    with log.open("wb") as written:
        done = subprocess.run(
            [environment.python, "-W", "ignore", __file__, *options, "--client", url, model, out],
            env=_variables([_SHIMS, *paths])
            | {"SGLANG_PERF_PATCHES": "none", "SGLANG_USE_MLX": "1", "HF_HUB_OFFLINE": "1"},
            stdout=written,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise RuntimeError("\n".join(log.read_text(errors="replace").splitlines()[-20:]))
    for line in out.read_text().splitlines():
        yield json.loads(line)


def _loads(given: argparse.Namespace) -> Iterator[_Load]:
    """Name, clients and bench_serving's options of each load."""
    half, tokens, replies = given.tokens // 2, str(given.tokens), str(given.replies)
    for clients in map(int, given.clients.split(",")):
        requests = given.each * clients
        unique = ["--dataset-name", "random-ids", "--num-prompts", str(requests)]
        unique += ["--random-input-len", tokens, "--random-output-len", replies]
        yield "unique prompts", clients, [*unique, "--random-range-ratio", "0.5"]
        shared = ["--dataset-name", "generated-shared-prefix", "--gsp-output-len", replies]
        groups = ["--gsp-num-groups", "1", "--gsp-prompts-per-group", str(requests)]
        lengths = ["--gsp-system-prompt-len", str(half), "--gsp-question-len", str(half)]
        # A ratio other than 1 keeps bench_serving from storing the prompts in a cache folder.
        ratio = ["--gsp-range-ratio", "0.9", "--num-prompts", str(requests)]
        yield "shared prefix", clients, [*shared, *groups, *lengths, *ratio]
        groups = ["--gsp-num-groups", str(clients), "--gsp-prompts-per-group", "1"]
        turns = ["--gsp-num-turns", "4", "--backend", "sglang-oai-chat"]
        ratio = ["--gsp-range-ratio", "0.9", "--num-prompts", str(clients)]
        yield "conversations", clients, [*shared, *groups, *lengths, *turns, *ratio]


def _send(url: str, model: str, out: str, loads: Sequence[_Load], warm_up: Sequence[_Load]) -> None:
    """Run bench_serving for each load, after those that warm up, and write its figures.

    A load of the warm-up has the same prompts when it is measured; the server's cache is flushed.
    """
    from sglang.benchmark import serving

    results = Path(f"{out}.result")
    for number, (load, clients, options) in enumerate([*warm_up, *loads], -len(warm_up)):
        results.unlink(missing_ok=True)
        seed = str(loads.index((load, clients, options)) + 1)
        common = ["--backend", "sglang", "--base-url", url, "--model", model, "--tokenizer", model]
        common += ["--served-model-name", "tiny", "--seed", seed, "--flush-cache"]
        common += ["--max-concurrency", str(clients), "--output-file", str(results)]
        sys.argv = ["bench_serving", *common, *options, "--output-details", "--disable-tqdm"]
        serving.cli_main()
        measured = json.loads(results.read_text().splitlines()[-1])
        failed = [error for error in measured.get("errors", []) if error]
        if failed:
            raise RuntimeError(f"{load}, {clients} clients: {failed[0]}")
        replies = hashlib.sha256(json.dumps(measured["generated_texts"]).encode()).hexdigest()
        row = {"load": load, "clients": clients, "replies": replies[:12]}
        row |= {"completed": measured["completed"]}
        if number >= 0:
            with Path(out).open("a") as written:
                written.write(json.dumps(row | {name: measured[name] for name in _FIGURES}) + "\n")


def _write_model(environment: Any, model: Path, shape: str, paths: Sequence[str]) -> None:
    """The example's tiny model, or one of Qwen3-0.6B's shape; with a template for chats."""
    code = "import sys; sys.path[:0] = sys.argv[3:]; import served; served.write(*sys.argv[1:3])"
    search = [str(Path(__file__).parent), str(_ROOT / "tests" / "harness")]
    subprocess.run(
        [environment.python, "-W", "ignore", "-c", code, model, shape, *search],
        env=_variables(paths),
        check=True,
    )


def write(folder: str, shape: str) -> None:
    """Write config, weights and tokenizer; runs where mlx is.

    No reply ends early: the end's logit is 0, which is never the largest.
    """
    import mlx.core as mx

    where = Path(folder)
    path = str(where / "model.safetensors")
    end = tiny_model._SPECIAL.index("<eos>")
    if shape in ("tiny", "window"):
        tiny_model.write_tiny_model(where)
        weights = mx.load(path) if shape == "tiny" else _with_windows(where)
        weights["lm_head.weight"][end] = 0
    else:
        from sizes import MODELS

        base, _, bits = shape.partition("-")
        sizes = MODELS[base]
        tiny_model._VOCABULARY = (
            *tiny_model._SPECIAL,
            *(f"w{number}" for number in range(sizes["vocab_size"] - len(tiny_model._SPECIAL))),
        )
        tiny_model._HIDDEN, tiny_model._INNER = sizes["hidden_size"], sizes["intermediate_size"]
        tiny_model._LAYERS, tiny_model._HEADS = (
            sizes["num_hidden_layers"],
            sizes["num_attention_heads"],
        )
        tiny_model._KV_HEADS, tiny_model._HEAD_DIM = sizes["num_key_value_heads"], sizes["head_dim"]
        tiny_model._CONFIG |= sizes | {"torch_dtype": "bfloat16"}
        if bits:
            tiny_model._CONFIG["quantization"] = {"bits": 4, "group_size": 64}
        tiny_model.write_tiny_model(where)
        weights = mx.load(path)
        del weights["lm_head.weight"]  # tied
        weights["model.embed_tokens.weight"][end] = 0
        weights = {name: value.astype(mx.bfloat16) for name, value in weights.items()}
        if bits:
            weights = _in_4_bits(weights)
    mx.eval(weights)
    mx.save_safetensors(path, weights, metadata={"format": "pt"})
    described = json.loads((where / "tokenizer_config.json").read_text())
    described["chat_template"] = _CHAT
    (where / "tokenizer_config.json").write_text(json.dumps(described))


def _with_windows(folder: Path) -> dict[str, Any]:
    """Weights of gpt-oss' layers, every other one with a window of 128, and their config."""
    from mlx.utils import tree_flatten

    from sglang_perf_patches.verify.mlx import models

    sizes = {
        name: tiny_model._CONFIG[name]
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    }
    sizes |= {"num_key_value_heads": tiny_model._KV_HEADS, "head_dim": tiny_model._HEAD_DIM}
    sizes |= {"intermediate_size": sizes["hidden_size"], "sliding_window": 128}
    sizes |= {"layer_types": ["sliding_attention", "full_attention"] * (tiny_model._LAYERS // 2)}
    with models.model("gpt_oss", "float32", **sizes) as model:
        config = {name: value for name, value in model.config.items() if name != "rope_scaling"}
        config |= {"architectures": ["GptOssForCausalLM"], "torch_dtype": "float32"}
        config |= {name: tiny_model._CONFIG[name] for name in ("bos_token_id", "eos_token_id")}
        config |= {"max_position_embeddings": tiny_model._CONTEXT, "hidden_act": "silu"}
        (folder / "config.json").write_text(json.dumps(config))
        return dict(tree_flatten(model.model.parameters()))


def _in_4_bits(weights: dict[str, Any]) -> dict[str, Any]:
    """The same weights with each matrix as mlx-lm has it in 4 bits."""
    import mlx.core as mx

    quantized = {}
    for name, value in weights.items():
        if value.ndim < 2:
            quantized[name] = value
            continue
        parts = mx.quantize(value, group_size=64, bits=4)
        for part, array in zip(("weight", "scales", "biases"), parts, strict=True):
            quantized[f"{name.removesuffix('weight')}{part}"] = array
    return quantized


def _variables(paths: Sequence[str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


if __name__ == "__main__":
    sys.exit(main())
