"""What `examples/size_pools.py` says of a model's memory, and what released code makes of it."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import released
import size_pools
from sglang_perf_patches import downloads
from sglang_perf_patches.compat import source
from sglang_perf_patches.model.releases import KNOWN
from sglang_perf_patches.sets.mamba.host_states import Cells

_WORKER = Path(__file__).with_name("split_worker.py")

MODELS = json.loads(Path(__file__).with_name("models.json").read_text("utf-8"))["sized"]
GIB = 34
SERVER = size_pools.Server(kv_gib=GIB, max_running_requests=256, context=4096)
RANKS = (1, 2)
EACH = pytest.mark.parametrize("release", [known for known in KNOWN if known != "0.5.8"])


def _job(model: str, ranks: int, line: size_pools.Line, is_default: bool) -> dict[str, Any]:
    words = line.give.split()
    strategy = "extra_buffer" if line.slots_each > 3 else "no_buffer"
    if "--mamba-radix-cache-strategy" in words:
        strategy = words[words.index("--mamba-radix-cache-strategy") + 1]
    elif "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1" in words:
        strategy = "extra_buffer"
    settings: dict[str, Any] = {
        "max_running_requests": SERVER.max_running_requests,
        "disable_radix_cache": "--disable-radix-cache" in words,
        "disable_overlap_schedule": "--disable-overlap-schedule" in words,
    }
    if not is_default:
        settings["max_mamba_cache_size"] = line.pools.states
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
def test_the_answer_is_what_the_release_makes_of_the_memory(release: str) -> None:
    """States, KV, slots and requests of each line, and which line a server is on by itself."""
    tree = source.at(downloads.tree(release))
    jobs: list[dict[str, Any]] = []
    told: list[tuple[str, Cells, size_pools.Line]] = []
    defaults: dict[str, bool] = {}
    for model, config in MODELS.items():
        (architecture,) = config["architectures"]
        for ranks in RANKS:
            cells = size_pools.cells_of(config, ranks)
            assert cells is not None
            lines = size_pools.states(tree, architecture, cells, SERVER)
            defaults[architecture] = lines[0].slots_each == 5
            assert len(lines) == len(size_pools.ways(tree, architecture)) + 1
            for number, line in enumerate(lines):
                jobs.append(_job(model, ranks, line, is_default=not number))
                told.append((f"{model}, {ranks}: {line.give}", cells, line))
    tracked, *answers = released.answers(released.tree(release), _WORKER, json.dumps(jobs))
    assert tracked == defaults
    assert len(answers) == len(told)
    for (name, cells, line), answer in zip(told, answers, strict=True):
        assert (answer["state"], answer["token"]) == (cells.state, cells.token), name
        assert answer["slots"] == line.pools.states, (name, answer, line)
        # Up to 0.5.16 stock forgets the slot that pads a batch.
        assert abs(answer["tokens"] - line.pools.tokens) <= cells.state / cells.token + 2, name
        in_flight = min(answer["running"], answer["tokens"] // SERVER.context)
        assert in_flight == line.in_flight, (name, answer, line)


def test_more_fits_in_the_same_memory() -> None:
    """Whatever the load, as many requests as stock's share lets run at least, with their KV."""
    cells = size_pools.cells_of(MODELS["Qwen3.5-35B-A3B"])
    assert cells is not None
    for context in (100, 1024, 4096, 16_384, 200_000):
        for requests in (1, 20, 256, 5000):
            for gib in (2, 34, 100):
                for each in (1, 3, 5):
                    server = size_pools.Server(gib, requests, context)
                    slots = size_pools.stock_slots(cells, server.available) - 1
                    stock = size_pools.line("", each, slots, cells, server)
                    slots = size_pools.fitted_slots(cells, server, each)
                    found = size_pools.line("", each, slots, cells, server)
                    assert found.in_flight >= stock.in_flight, server
                    used = (slots + 1) * cells.state + found.pools.tokens * cells.token
                    assert server.available - cells.token < used <= server.available
                    assert slots >= found.in_flight * each
                    assert found.pools.tokens >= found.in_flight * context


def test_the_command_prints_each_way_and_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(config: dict[str, Any], *words: str) -> tuple[int, str]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        server = ("--kv-gib", str(GIB), "--max-running-requests", "256", *words)
        monkeypatch.setattr(sys, "argv", ["size_pools.py", str(tmp_path), *server])
        code = size_pools.main()
        return code, "".join(capsys.readouterr())

    words = ("--context", "4096", "--sglang-version", "0.5.23")
    code, text = printed(MODELS["Qwen3-Next"], *words, "--hicache-ratio", "2")
    assert code == 0, text
    assert "(stock's defaults)" in text
    assert re.search(r"--disable-radix-cache --max-mamba-cache-size \d+$", text, re.MULTILINE)
    assert "SGLANG_PERF_PATCHES_TOKENS_PER_STATE=4096 SGLANG_PERF_PATCHES=all,mamba" in text
    windowed = {"layer_types": ["sliding_attention", "full_attention"] * 12, "head_dim": 64}
    windowed |= {"num_hidden_layers": 24, "num_key_value_heads": 8, "sliding_window": 128}
    assert "--swa-full-tokens-ratio 0." in printed(windowed)[1]
    assert printed({**windowed, "sliding_window": None})[0] == 0
    code, text = printed({**MODELS["Nemotron-H"], "mamba_ssm_dtype": "float8"}, *words)
    assert (code, text) == (2, "size_pools: OperatorError: its states are of type float8\n")
    small = ("--kv-gib", "0.1", *words)
    assert "hold no request of 4096 tokens" in printed(MODELS["Qwen3-Next"], *small)[1]
