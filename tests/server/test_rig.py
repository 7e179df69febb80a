"""The measurements' rig on a real Engine: MLX on this CPU, the set off and on by turns."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import fleet
import pytest
import shapes
import traces
import turns
from engine import Replies, parsed, quartiles

from linux_mlx.environments import sglang_environment, variables
from linux_mlx.server import free_port, write_model
from sglang_perf_patches.model import releases

ROOT = Path(__file__).parents[2]
RIG = ROOT / "tests" / "benchmarks" / "rig"
SHIMS = ROOT / "tests" / "harness" / "linux_mlx" / "shims"

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="the shims are for Linux")


def measured(tmp_path: Path, *words: str, **more: str) -> Any:
    """What the rig finds out about a small model on this CPU."""
    environment = sglang_environment(releases.KNOWN[-1])
    python: list[str | Path] = [environment.python, "-W", "ignore"]
    settings = variables(
        PYTHONPATH=os.pathsep.join(map(str, (ROOT / "src", SHIMS))),
        SGLANG_USE_MLX="1",
        SGLANG_PERF_PATCHES="mlx",
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
        TMPDIR=tmp_path,
        XDG_RUNTIME_DIR=tmp_path,
        **more,
    )
    model = write_model(environment, tmp_path)
    out = tmp_path / "out.json"
    options = ("device=cpu", "max_total_tokens=16384", f"nccl_port={free_port()}")
    run = [*python, "-m", "sglang_perf_patches", "run", *python, RIG / "turns.py"]
    done = subprocess.run(
        [*run, out, model, *words, *options],
        env=settings,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.whole_matrix  # an Engine
def test_an_engine_shows_stock_and_ours_by_turns(tmp_path: Path) -> None:
    measurement = measured(
        tmp_path,
        *("all,-mlx.kv-arena", "together", "ttft", "tpot"),
        ROUNDS="3",
        TOGETHER="3x20",
        CELLS="2x17",
        BATCHES="2",
        TOKENS="12",
        PROMPT="16",
    )
    live = measurement["said"]["patches"]
    assert "mlx.kv-arena" in live
    assert measurement["off"] == {"stock": live, "all": [], "-mlx.kv-arena": ["mlx.kv-arena"]}
    same = {"stock": "3 of 3", "all": "3 of 3", "-mlx.kv-arena": "3 of 3"}
    assert {side: measurement["together"][side] for side in same} == same
    assert measurement["together"]["different tokens"] > 1
    for figures in (measurement["ttft"]["2x17"]["last"], measurement["tpot"]["2"]["per token"]):
        assert set(figures) == set(same)
        assert all(len(each["turns"]) == 3 for each in figures.values())
        assert figures["stock"]["ratio"] == [1, 1, 1]
    assert "mlx.kv-arena" in measurement["patches"]["ran"]
    assert measurement["patches"]["left out"] == []


def test_what_can_t_be_measured_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for words, says in (
        (("out.json", "no-such-shape", "all"), "no shape or model 'no-such-shape'"),
        (("out.json", "gdn-24", "all", "tofu"), "no part 'tofu'"),
    ):
        with mock.patch.dict(os.environ):
            assert turns.main(words) == 2
        assert says in capsys.readouterr().err


class Asked:
    """In place of a server: it has these patches, and keeps what it is asked to show."""

    def __init__(self, *live: str) -> None:
        self.said = {"patches": [*live]}
        self.shown: list[tuple[Any, ...]] = []

    def ask(self, *words: Any) -> None:
        self.shown.append(words)

    def generate(self, prompts: list[list[int]], output: int) -> Replies:
        return Replies(len(self.shown), [[output]], [1.0], [0], 0, [])


def test_a_side_names_what_is_on() -> None:
    server: Any = Asked("a.x", "a.y", "a.z")
    sides = turns.Sides(server, ["all", "-a.y", "a.x+a.z", "a.y", "flashinfer", "stock"])
    assert sides.off == {
        "stock": ["a.x", "a.y", "a.z"],
        "all": [],
        "-a.y": ["a.y"],
        "a.x+a.z": ["a.y"],
        "a.y": ["a.x", "a.z"],
        "flashinfer": ["a.x", "a.y", "a.z"],
    }
    sides.show("a.y")
    assert server.shown == [("show", ["a.x", "a.z"], "a.y")]
    with pytest.raises(ValueError, match=r"^a\.w: not live; live: a\.x, a\.y, a\.z$"):
        turns.Sides(server, ["-a.w"])


def test_each_round_has_another_order_and_the_first_ones_don_t_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "ROUNDS", 2)
    server: Any = Asked("a.x")
    taken = turns.Sides(server, ["all"]).by_turns(lambda: [[1]], 3)
    assert [side for _, _, side in server.shown] == [*("all", "stock", "stock", "all") * 2]
    assert [each.seconds for each in taken["all"]] == [5, 8]
    comparison = turns.compared(taken, lambda one: {"s": one.seconds})
    assert comparison["s"]["all"]["turns"] == [5, 8]
    assert comparison["s"]["all"]["ratio"] == quartiles([5 / 6, 8 / 7])
    assert turns.same(turns.flat(taken)) == {
        "different tokens": 1,
        "stock": "2 of 2",
        "all": "2 of 2",
    }


def test_options_and_changes_to_the_model() -> None:
    words = ["a=1", "b=text", "c=", "model.num_hidden_layers=4", 'd=[1, "x"]']
    options = {"a": 1, "b": "text", "c": None, "d": [1, "x"]}
    assert parsed(words) == (options, {"num_hidden_layers": 4})


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_a_shape_is_written_as_an_engine_reads_it(name: str, tmp_path: Path) -> None:
    options, words = shapes.write(name, tmp_path, {})
    config = json.loads(Path(options["model_path"], "config.json").read_text(encoding="utf-8"))
    assert words == config["vocab_size"]
    layers = config.get("num_hidden_layers") or len(config["hybrid_override_pattern"])
    assert len(config.get("layer_types", [0] * layers)) == layers
    draft = options.get("speculative_draft_model_path")
    assert (draft is not None) == (shapes.SHAPES[name].draft is not None)
    cut, _ = shapes.write(name, tmp_path / "cut", {"num_hidden_layers": 2})
    config = json.loads(Path(cut["model_path"], "config.json").read_text(encoding="utf-8"))
    assert len(config.get("layer_types", [0, 0])) == config["num_hidden_layers"] == 2


def _kernels(*each: tuple[str, float, float]) -> list[traces.Event]:
    return [
        {"cat": "kernel", "ph": "X", "name": name, "ts": start, "dur": end - start}
        for name, start, end in each
    ]


def test_a_ranks_work_leaves_out_its_waits_for_other_ranks() -> None:
    """The second rank comes 400 µs late to the first all-reduce, and the first to the second."""
    first = _kernels(
        ("gemm", 0, 1000),
        ("all_reduce_one_shot", 1000, 1450),
        ("ncclDevKernel_AllGather", 1700, 1800),
    )
    second = _kernels(
        ("gemm", 0, 1400),
        ("all_reduce_one_shot", 1400, 1450),
        ("ncclDevKernel_AllGather", 1450, 1800),
    )
    split = traces.of_ranks([first, second], 1)
    assert split["collectives at best ms"] == 0.15
    assert [each["busy ms"] for each in split["ranks"]] == [1.55, 1.8]
    assert [each["work ms"] for each in split["ranks"]] == [1.15, 1.55]
    assert [each["collectives"] for each in split["ranks"]] == [2, 2]
    assert split["ranks"][0]["idle before"] == {"ncclDevKernel_AllGather": [0.25, 1]}
    assert split["ranks"][0]["idle ms"] == 0.25
    assert split["ranks"][1]["idle before"] == {}


def test_a_rank_whose_profile_began_earlier_is_compared_from_its_end() -> None:
    early = _kernels(("all_gather", 0, 700), ("all_reduce", 1000, 1300))
    late = _kernels(("all_reduce", 1200, 1300))
    split = traces.of_ranks([early, late], 1)
    assert split["collectives at best ms"] == 0.1
    assert [each["collectives"] for each in split["ranks"]] == [2, 1]


def test_a_profile_is_read_once_all_ranks_have_written_it(tmp_path: Path) -> None:
    def write(rank: int, text: str) -> None:
        with gzip.open(tmp_path / f"1-TP-{rank}.trace.json.gz", "wt") as file:
            file.write(text)

    write(0, json.dumps({"traceEvents": [{"name": "a"}]}))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 4:
            write(1, json.dumps({"traceEvents": [{"name": "b"}]}))

    with mock.patch("traces.time.sleep", sleep):
        assert traces.written(tmp_path, 2) == [[{"name": "a"}], [{"name": "b"}]]
    assert len(slept) == 5  # it looks once more whether they still grow


def test_replies_are_compared_with_the_first_engines_and_with_their_own_again() -> None:
    class Answers:
        def __init__(self, name: str, *passes: list[list[float]]) -> None:
            self.name = name
            self.told = {"tokens": [[[1], [2]], [[1], [2]]], "logprobs": list(passes)}

        def ask(self, *words: Any, seconds: float) -> Any:
            assert words == ("bits", fleet.BITS)
            return self.told

    steady: Any = Answers("a", [[-1.0], [-2.0]], [[-1.0], [-2.0]])
    other: Any = Answers("b", [[-1.0], [-2.5]], [[-1.0], [-2.25]])
    results = fleet.same_bits([steady, other])
    assert results["a"]["logprobs equal to the first's"] == "2 of 2"
    assert results["b"]["tokens equal to the first's"] == "2 of 2"
    assert results["b"]["logprobs equal to the first's"] == "1 of 2"
    assert results["b"]["logprobs equal to its own"] == "1 of 2"
    assert results["b"]["of first tokens, largest difference"] == 0.5
    assert results["b"]["different first tokens"] == 2


def test_a_plan_says_what_is_profiled() -> None:
    with mock.patch.dict(os.environ, {"CELLS": "1x130 1x519 8x512"}):
        assert fleet.profiles({}) == [("prefills", "1x130"), ("prefills", "1x519")]
        decodes = [("decodes", f"{count}x256") for count in (1, 16, 64)]
        assert fleet.profiles({"profiles": ["decodes", "host"]}) == [*decodes, ("host", "1x130")]
