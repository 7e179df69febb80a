"""``doctor -- COMMAND`` on released code; `tests/server/test_asked.py` compares it with servers."""

import json
import os
import re
import socket
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import released
from configurations import write
from fake_driver import DRIVER
from sglang_perf_patches.cli import verbs
from sglang_perf_patches.cli.ask import gpus
from sglang_perf_patches.cli.verbs import asking
from sglang_perf_patches.model.feature import Setup
from sglang_perf_patches.model.selection import Selection
from tests.releases.markdown import rows
from tests.releases.recipes.models import MODELS
from tests.releases.recipes.outcomes import resolved

L40 = """
Driver.gpus = [(8, 9)]
ctypes.CDLL = lambda name, *rest, real=ctypes.CDLL, **more: (
    Driver() if name == "libnvidia-ml.so.1" else real(name, *rest, **more)
)
"""
RESOLVE = Path(__file__).with_name("resolve.py")

COMMANDS = (
    ("plain",),
    ("next", "--tp", "4", "--chunked-prefill-size", "4096"),
    ("next", "--page-size", "64", "--disable-radix-cache", "--attention-backend", "triton"),
    ("windows", "--disaggregation-mode", "decode", "--mem-fraction-static", "0.8"),
    ("plain", "--no-such-flag"),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("plain", "next", "windows"):
        write(folder, name)
    return folder


def doctor(place: released.Place, *words: str, **variables: str) -> str:
    command = ("-m", "sglang_perf_patches", "doctor", *words)
    return released.run(place, *command, **{"HF_HUB_OFFLINE": "1", **variables})


def failure(place: released.Place, *words: str, **variables: str) -> str:
    """What the command prints and exits with another code than 0."""
    with pytest.raises(AssertionError) as lost:
        doctor(place, *words, **variables)
    return str(lost.value)


def asked(release: str, gpu: str, command: str, *words: str) -> dict[str, Any]:
    """What the command answers; a state and a reason by patch below ``states``."""
    place = released.tree(release)
    path = f"{place.python.parent}{os.pathsep}{os.environ['PATH']}"
    out = doctor(place, "--json", "--gpu", gpu, "--", *command.split(), *words, PATH=path)
    data: dict[str, Any] = json.loads(out)
    assert data["sglang"]["version"] == release
    data["states"] = {each["id"]: (each["state"], each["reason"]) for each in data["patches"]}
    return data


@pytest.mark.newest
@pytest.mark.parametrize(
    "release", ["0.5.9", "0.5.12.post1", "0.5.17", "0.5.19", "0.5.21", "0.5.23"]
)
def test_a_release_resolves_a_command_as_on_that_gpu(models: Path, release: str) -> None:
    command = (
        f"A=1 sglang-perf-patches run python -m sglang.launch_server --model-path {models}/next"
    )
    data = asked(release, "H100", command, *["--tp", "4", "--dp", "2", "--enable-dp-attention"])
    assert data["gpu"]["name"] == "NVIDIA H100 80GB HBM3"
    assert "tensor-parallel" in data["features"]
    assert "other-gpu" not in data["features"]
    assert data["loads_plugin"]
    states = data["states"]
    assert states["mamba.slot-exhaustion"] == ("live", "")
    assert states["mamba.lightning-rows"][0] in {"not needed", "absent"}
    assert states["mamba.mamba2-chunk-indices"] == ("not needed", "the model has no Mamba2 layers")
    assert states["mlx.first-buffer"][0] in {"not needed", "absent"}
    assert {state for state, _ in states.values()} <= {
        *("live", "gated", "not needed", "built-in", "absent", "off (opt-in)")
    }


def test_kimi_linear_needs_no_patch_of_other_states(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["kimi-linear-48b"]))
    states = asked("0.5.23", "H100", f"sglang serve {tmp_path}", "--tp", "2")["states"]
    assert states["mamba.lightning-rows"][1] == "the model has no lightning attention"
    assert states["mamba.mamba2-chunk-indices"] == ("not needed", "the model has no Mamba2 layers")


ACTS = rows(
    "acts.md",
    TOPK="--speculative-algorithm EAGLE --speculative-num-steps 3 "
    "--speculative-num-draft-tokens 4 --speculative-eagle-topk",
    TRACKED="--mamba-radix-cache-strategy extra_buffer",
)
"""A release, a server's name, its model and flags, and the states of some patches."""


@pytest.mark.parametrize("release", dict.fromkeys(row[0] for row in ACTS))
def test_live_is_what_acts_in_this_server(release: str, tmp_path: Path) -> None:
    cases = [row[1:] for row in ACTS if row[0] == release]
    servers = []
    for name, model, flags, _ in cases:
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        if model in MODELS:
            (folder / "config.json").write_text(json.dumps(MODELS[model]))
        else:
            folder = write(folder, model)
        servers.append(("H200", ["--model-path", folder, *flags.split()]))
    answers = resolved(released.tree(release), servers, release)
    verdicts = verbs.judged(verbs.tree_at(version=release))
    every = Selection("", tuple(one.patch.id for one in verdicts), frozenset(), frozenset())
    for (name, _, _, acts), answered in zip(cases, answers, strict=True):
        assert "setup" in answered, (name, answered)
        expected = dict(each.split(" ", 1) for each in acts.split(", "))
        on, lacking, having = answered["setup"]
        outlooks = asking.outlooks(every, verdicts, Setup(on, lacking, frozenset(having)))
        states = {one.patch: (one.state, one.reason) for one in outlooks if one.patch in expected}
        assert {patch: state for patch, (state, _) in states.items()} == expected, (name, states)


def test_strict_and_the_typed_flag_are_told(models: Path) -> None:
    asks = "--gpu H200 -- SGLANG_PERF_PATCHES=mla SGLANG_PERF_PATCHES_STRICT=1"
    server = ("sglang", "serve", str(models / "plain"), "--tp", "2", "--dp", "2")
    draft = ("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", server[2])
    words = (*asks.split(), *server, *draft, "--enable-dp-attention")
    said = " ".join(failure(released.tree("0.5.23"), *words).split())
    assert "server would exit: mla.request-broadcast is gated: data-parallel" in said
    assert "(--enable-dp-attention)" in said


def short_of(data: dict[str, Any], patch: str) -> Any:
    return next(each["short"] for each in data["patches"] if each["id"] == patch)


def test_a_gain_is_for_this_set_up_or_none_was_measured() -> None:
    """Each patch with a gain: once in a set-up that meets its words, once in one that does not."""
    verdicts = [
        one
        for one in verbs.judged(verbs.tree_at(version="0.5.23"))
        if one.word == "applies" and one.patch.gain_with and " | " not in one.patch.gain_with
    ]
    assert len(verdicts) > 5
    for one in verdicts:
        words = one.patch.gain_with.split()
        wanted = frozenset(word for word in words if not word.startswith("-"))
        unwanted = {word[1:]: "it is on" for word in words if word.startswith("-")}
        fate = asking.Outlook(one.patch.id, "live", "")
        for setup, is_met in (
            (Setup({}, {}, wanted), True),
            (Setup(unwanted, {}, wanted), not unwanted),
            (Setup(unwanted, {}, frozenset()), False),
        ):
            short = asking._headline(fate, one.patch, "0.5.23", setup)
            assert short is not None
            assert (short.gain == "no gain was measured for this set-up") == (not is_met), words
            assert short.gain


@pytest.mark.whole_matrix
def test_gates_name_the_flag_and_the_gpu(models: Path) -> None:
    graph = "mamba.gdn-prefill-graph"
    command = f"sglang serve {models}/next"
    assert asked("0.5.23", "H200", command)["states"][graph] == ("live", "")
    state, why = asked("0.5.23", "L40", command)["states"][graph]
    assert (state, why) == (
        "gated",
        "the GPU is not a Hopper (H100, H200): this patch was not tested with that; to test it on "
        f"your GPU: sglang-perf-patches verify {graph}",
    )
    data = asked("0.5.23", "H200", command, "--num-continuous-decode-steps", "2")
    assert data["states"][graph][1].startswith(
        "the scheduler decodes several steps at once (--num-continuous-decode-steps)"
    )
    assert short_of(data, graph) is None
    one = short_of(asked("0.5.23", "H200", command), graph)
    four = short_of(asked("0.5.23", "H200", command, "--tp", "4"), graph)
    for short, machine in ((one, "H200"), (four, "4 \u00d7 H100")):
        assert "130-token prompt" in short["gain"]
        assert short["gain"].endswith(f"(0.5.23, {machine})")


RECORD = """
from driver import Driver
from sglang_perf_patches.cli.verbs import judged, tree_at
from sglang_perf_patches import verified
from sglang_perf_patches.telemetry import records
(verdict,) = [each for each in judged(tree_at()) if each.patch.id == "mamba.gdn-prefill-graph"]
(record,) = verified.records(verdict)
records.write(verified.path(record), record)
"""


def test_a_record_counts_for_the_gpus_that_are_here(models: Path, tmp_path: Path) -> None:
    """The driver, ``nvidia-smi`` and the comparison have stand-ins; all else is the release's."""
    place = released.tree("0.5.23")
    place = replace(place, search=(tmp_path, *place.search))
    (tmp_path / "driver.py").write_text(DRIVER.partition("ctypes.CDLL =")[0] + L40)
    (tmp_path / "sitecustomize.py").write_text("import driver")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho NVIDIA L40, 46068, 8.9\n")
    smi.chmod(0o755)
    there = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def state(*gpu: str) -> tuple[str, str]:
        server = ("sglang", "serve", str(models / "next"))
        data = json.loads(doctor(place, "--json", *gpu, "--", *server, **there))
        assert data["gpu"]["name"] == "NVIDIA L40"
        graph = next(each for each in data["patches"] if each["id"] == "mamba.gdn-prefill-graph")
        return graph["state"], graph["reason"]

    gated = state()
    assert gated[0] == "gated"
    assert gated[1].endswith(
        "; to test it on your GPU: sglang-perf-patches verify mamba.gdn-prefill-graph"
    )
    released.run(place, "-c", RECORD, **there)
    assert state() == ("live", "")
    assert state("--gpu", "L40") == gated, "that one is elsewhere"


@pytest.mark.newest
@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_a_model_that_the_hub_does_not_give_is_one_sentence(release: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        hub = {
            "HF_ENDPOINT": f"http://127.0.0.1:{closed.getsockname()[1]}",
            **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HF_HUB_OFFLINE"), ""),
        }
        place = released.tree(release)
        server = (str(place.python), "-m", "sglang.launch_server", "--model-path", "nobody/model")
        said = failure(place, "--gpu", "H200", "--", *server, **hub)
        assert "can't fetch config.json of nobody/model from" in said


@pytest.mark.whole_matrix
def test_the_transformers_that_fits_is_told(tmp_path: Path) -> None:
    """By the metadata of an installed release, and transformers' own error."""
    older = Path(released.slim("0.5.10.post1").python).parents[1]
    (packages,) = older.glob("lib/python3*/site-packages")
    for found in packages.glob("transformers*"):
        (tmp_path / found.name).symlink_to(found)
    place = released.slim("0.5.17")
    asking = {"place": place, "older": replace(place, search=(tmp_path, *place.search))}

    def said(where: str, kind: str, architecture: str) -> str:
        model = tmp_path / kind
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(
            json.dumps({"architectures": [architecture], "model_type": kind})
        )
        server = (str(place.python), "-m", "sglang.launch_server", "--model-path", str(model))
        return failure(asking[where], "--", "SGLANG_USE_MLX=1", *server, "--device", "cpu")

    unknown = "ValueError: The checkpoint you are trying to load has model type `{}` but"
    newer = said("older", "exaone4_5", "Exaone4_5_ForConditionalGeneration")
    assert f"sglang 0.5.17 could not be asked with transformers 5.3.0 of {place.python}" in newer
    assert unknown.format("exaone4_5") in newer
    assert newer.rstrip().endswith("it needs transformers==5.12.1")
    nobody_s = said("place", "llada2_moe", "LLaDA2MoeModelLM")
    assert (
        "sglang 0.5.17 could not be asked: transformers 5.12.1, which fits it, failed "
        f"({unknown.format('llada2_moe')}" in nobody_s
    )
    assert "it needs" not in nobody_s


@pytest.mark.whole_matrix
@pytest.mark.parametrize("selection", ["all,-mlx.relay-device", "none"])
def test_a_hybrid_model_on_mlx_is_asked_with_its_patches(models: Path, selection: str) -> None:
    """Stock's own arguments refuse it: only `mlx.hybrid-defaults` makes them fit."""
    place = released.slim("0.5.23")
    settings = [f"SGLANG_PERF_PATCHES={selection}", "SGLANG_USE_MLX=1"]
    server = (str(place.python), "-m", "sglang.launch_server", "--model-path", str(models / "next"))
    ask = ("--json", "--", *settings, *server)
    if selection == "none":
        assert re.search(r"refuses this command: .* our mlx\.hybrid-", failure(place, *ask))
        return
    # A Mac's command says "mps", or nothing.
    data, same = (json.loads(doctor(place, *ask, *words)) for words in ((), ("--device", "mps")))
    assert data == same
    states = {each["id"]: each["state"] for each in data["patches"]}
    assert states["mlx.hybrid-cache"] == states["mlx.hybrid-defaults"] == "live"
    # It asks about a Mac, whose device is not the CPU.
    assert "mlx-relay-device" in [each["name"] for each in data["faults"]]


@pytest.mark.whole_matrix  # it imports all of a release
@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_what_is_left_out_changes_no_argument(models: Path, release: str) -> None:
    gpu = asdict(gpus.KINDS["H200"])
    servers = [(gpu, ["--model-path", str(models / name), *words]) for name, *words in COMMANDS]
    minimal, everything = (
        released.run(
            released.tree(release),
            *(str(RESOLVE), imports, release),
            given=json.dumps(servers),
            HF_HUB_OFFLINE="1",
        ).splitlines()
        for imports in ("minimal", "all")
    )
    assert minimal == everything
    answers = [json.loads(each) for each in minimal]
    answered = ["setup", "arguments", "faults"]
    assert [list(each) for each in answers] == [answered] * 4 + [["refused"]]
    assert all(len(each["arguments"]) > 200 for each in answers[:4])
