"""What ``doctor --model`` says of a hybrid model's memory, and what released code makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import released
from sglang_perf_patches.cli import downloads
from sglang_perf_patches.cli.sizing import split as state_split
from sglang_perf_patches.cli.sizing import states
from sglang_perf_patches.cli.sizing.server import Server
from sglang_perf_patches.cli.sizing.split import Load, Split
from sglang_perf_patches.cli.sizing.states import Way
from sglang_perf_patches.compat import source
from sglang_perf_patches.model.errors import OperatorError
from sglang_perf_patches.model.releases import KNOWN
from sglang_perf_patches.sets.mamba.host_split import Cells

_WORKER = Path(__file__).with_name("split_worker.py")

GDN: dict[str, Any] = {
    "num_hidden_layers": 40,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 2048,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3-Next": {
        **GDN,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 48,
    },
    "Qwen3.5-35B-A3B": {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": {**GDN, "model_type": "qwen3_5_moe_text", "mamba_ssm_dtype": "float32"},
    },
    "Falcon-H1": {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "num_hidden_layers": 44,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "hidden_size": 3072,
        "mamba_d_ssm": 3072,
        "mamba_n_groups": 1,
        "mamba_n_heads": 24,
        "mamba_d_head": 128,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
    },
    "Nemotron-H": {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "num_hidden_layers": 14,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M",
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 4096,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "mamba_ssm_dtype": "bfloat16",
    },
    "Kimi Linear": {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "hidden_size": 2304,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "linear_attn_config": {
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "full_attn_layers": [4, 8],
            "kda_layers": [1, 2, 3, 5, 6, 7],
        },
    },
}
GIB = 34
SERVER = Server(kv_gib=GIB)
LOAD = Load(256, 4096)
RANKS = (1, 2)
EACH = pytest.mark.parametrize("release", [known for known in KNOWN if known != "0.5.8"])


def _job(model: str, ranks: int, way: Way, split: Split | None) -> dict[str, Any]:
    """A server that is given what a line of the hint says."""
    words = way.give.split()
    strategy = "extra_buffer" if way.slots_each > 3 else "no_buffer"
    if "--mamba-radix-cache-strategy" in words:
        strategy = words[words.index("--mamba-radix-cache-strategy") + 1]
    elif "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1" in words:
        strategy = "extra_buffer"
    settings: dict[str, Any] = {
        "max_running_requests": LOAD.requests,
        "disable_radix_cache": "--disable-radix-cache" in words,
        "disable_overlap_schedule": "--disable-overlap-schedule" in words,
    }
    if split is not None:
        settings["max_mamba_cache_size"] = split.slots
    return {
        "config": MODELS[model],
        "ranks": ranks,
        "gib": GIB,
        "strategy": strategy,
        "skip": "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1" in words,
        "settings": settings,
    }


@pytest.mark.newest
@EACH
def test_the_hint_is_what_the_release_makes_of_the_memory(release: str) -> None:
    """States, KV, slots and requests of each line, and which line a server is on by itself."""
    tree = source.at(downloads.tree(release))
    jobs: list[dict[str, Any]] = []
    told: list[tuple[str, Cells, Split]] = []
    defaults: dict[str, bool] = {}
    for model, config in MODELS.items():
        (architecture,) = config["architectures"]
        for ranks in RANKS:
            cells = state_split.cells_of(config, Server(kv_gib=GIB, tp_size=ranks))
            assert cells is not None
            hint = states.hint(tree, architecture, cells, LOAD, SERVER)
            ways = states.ways(tree, architecture)
            defaults[architecture] = ways[0].slots_each == 5
            assert len(hint.lines) == len(ways) + 1
            for number, line in enumerate(hint.lines):
                way = ways[max(0, number - 1)]
                jobs.append(_job(model, ranks, way, line.split if number else None))
                told.append((f"{model}, {ranks}: {line.give}", cells, line.split))
    tracked, *answers = released.answers(
        released.tree(release), _WORKER, json.dumps(jobs), limit_s=None
    )
    assert tracked == defaults
    assert len(answers) == len(told)
    for (line, cells, split), answer in zip(told, answers, strict=True):
        assert (answer["state"], answer["token"]) == (cells.state, cells.token), line
        assert answer["slots"] == split.slots, (line, answer, split)
        # Up to 0.5.16 stock forgets the slot that pads a batch.
        assert abs(answer["tokens"] - split.tokens) <= cells.state / cells.token + 2, line
        in_flight = min(answer["running"], answer["tokens"] // LOAD.context)
        assert in_flight == split.in_flight, (line, answer, split)


def test_more_fits_in_the_same_memory() -> None:
    """Whatever the load, as many requests as stock's share lets run at least, with their KV."""
    cells = state_split.cells_of(MODELS["Qwen3.5-35B-A3B"], SERVER)
    assert cells is not None
    for context in (100, 1024, 4096, 16_384, 200_000):
        for requests in (1, 20, 256, 5000):
            for gib in (2, 34, 100):
                for slots_each in (1, 3, 5):
                    load, available = Load(requests, context), gib << 30
                    how = {"available": available, "slots_each": slots_each}
                    stock = state_split.stock(cells, load, **how)
                    split = state_split.fitted(cells, load, **how)
                    assert split.in_flight >= stock.in_flight, (load, gib, slots_each)
                    used = (split.slots + 1) * cells.state + split.tokens * cells.token
                    assert available - cells.token < used <= available
                    assert split.slots >= split.in_flight * slots_each
                    assert split.tokens >= split.in_flight * context


def test_a_model_without_states_has_no_split() -> None:
    assert state_split.cells_of({"model_type": "llama", "num_hidden_layers": 2}, SERVER) is None


def test_states_of_a_type_that_nobody_knows_are_refused() -> None:
    with pytest.raises(OperatorError, match="float8"):
        state_split.cells_of({**MODELS["Nemotron-H"], "mamba_ssm_dtype": "float8"}, SERVER)
