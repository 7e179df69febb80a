"""Beside another plugin in a real stock server: its wrappers work, what it replaces is its own."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from linux_mlx.completions import Completion, complete, workload
from linux_mlx.patches import live_and_run, processes
from linux_mlx.server import running_server
from tests.server.test_mlx_hybrid import ON_LINUX, prepared

pytestmark = [ON_LINUX, pytest.mark.whole_matrix]

_REQUESTS = workload(6)
_OURS = "sglang-perf-patches", "perf_patches = sglang_perf_patches.plugin:load"
_THEIRS = "their-plugin", "theirs = their_plugin:load"
_MLX = "sglang.srt.hardware_backend.mlx"
_DECODE = "sglang.srt.disaggregation.decode"
_ATTENTION = "sglang.srt.layers.attention"
_LOOK = (
    f"{_MLX}.kv_cache.attention_wrapper:MLXAttentionWrapper._batched_decode",
    f"{_MLX}.kv_cache.attention_kv_cache:ContiguousAttentionKVCache._grow",
    f"{_DECODE}:DecodePreallocQueue._uses_swa_tail_prealloc",
    f"{_DECODE}:alloc_for_decode_prealloc",
    f"{_ATTENTION}.mamba.mamba2_metadata:Mamba2Metadata._query_start_loc_to_chunk_indices_offsets",
)


@dataclass(frozen=True)
class Seen:
    """What came of a server with the other plugin."""

    replies: list[str]
    states: dict[str, tuple[str, str]]  # of the patches in the scheduler, with their reasons
    run: list[str]  # which of them had run
    calls: int  # of the other plugin's function
    origins: dict[str, list[str]]  # the files of a name's code while the server answered
    log: str

    def is_ours(self, name: str) -> bool:
        return self.has_code_of(name, "sglang_perf_patches")

    def has_code_of(self, name: str, part: str) -> bool:
        """Whether a definition had code of a file whose path has this part."""
        [files] = [files for reference, files in self.origins.items() if reference.endswith(name)]
        return any(part in Path(file).parts for file in files)


@pytest.fixture(scope="module", params=["theirs first", "ours first"])
def wrapped(request: pytest.FixtureRequest, folder: Path) -> Seen:
    """A server whose other plugin wraps one target and replaces others."""
    places = [_distribution(folder, _THEIRS)]
    if request.param == "ours first":  # before the site-packages folder where ours is installed
        places.insert(0, _distribution(folder, _OURS))
    return _serve(folder, "wraps", places)


@pytest.fixture(scope="module")
def replaced(folder: Path) -> Seen:
    """A server under `run` whose other plugin replaces a method that runs."""
    return _serve(folder, "replaces", [_distribution(folder, _THEIRS)], run=True)


def test_a_wrapper_works_and_is_reported(wrapped: Seen) -> None:
    state, reason = wrapped.states["mlx.kv-arena"]
    assert state == "live"
    assert reason.startswith("wrapped by their_plugin.")
    assert reason.endswith("around of their-plugin")
    assert "mlx.kv-arena" in wrapped.run
    assert wrapped.calls >= max(request.max_tokens for request in _REQUESTS) - 1
    assert wrapped.is_ours("._batched_decode")


@pytest.mark.parametrize(
    ("patch", "name"),
    [
        ("swa.page-size-1", f"{_DECODE}:DecodePreallocQueue._uses_swa_tail_prealloc"),
        ("mamba.mamba2-chunk-indices", "mamba2_metadata:Mamba2Metadata.prepare_mixed"),
        ("mamba.lightning-rows", ":LightningAttentionBackend"),
        ("mla.draft-metadata", ":TRTLLMMLAMultiStepDraftBackend"),
    ],
    ids=["method by registry", "method by assignment", "class by registry", "class by assignment"],
)
def test_a_replacement_is_named_and_our_patch_is_off(wrapped: Seen, patch: str, name: str) -> None:
    state, reason = wrapped.states[patch]
    assert state == "conflict"
    assert name in reason
    assert "their_plugin." in reason
    assert "of their-plugin" in reason
    assert patch not in wrapped.run
    assert wrapped.log.count(f"{patch} is conflict: {reason}\n") == 1


def test_what_else_such_a_patch_changes_is_stock(wrapped: Seen) -> None:
    assert not wrapped.is_ours("._uses_swa_tail_prealloc")
    assert not wrapped.is_ours(":alloc_for_decode_prealloc")
    assert not wrapped.is_ours("._query_start_loc_to_chunk_indices_offsets")


def test_under_run_a_replaced_method_is_theirs_and_the_patch_is_off(replaced: Seen) -> None:
    state, reason = replaced.states["mlx.kv-arena"]
    assert state == "conflict"
    assert "MlxModelRunner._release_cache is replaced by their_plugin.forget_cache" in reason
    assert "their-plugin" in reason
    assert replaced.calls == len(_REQUESTS)
    assert replaced.log.count("mlx.kv-arena is conflict") == 1
    assert not replaced.is_ours("._batched_decode")
    assert not replaced.is_ours("._grow")


def test_under_run_a_patch_not_needed_leaves_stocks_code_in_their_wrapper(replaced: Seen) -> None:
    assert replaced.states["swa.page-size-1"][0] == "not needed"
    assert replaced.has_code_of("._uses_swa_tail_prealloc", "hook_registry.py")
    assert not replaced.is_ours("._uses_swa_tail_prealloc")
    assert not replaced.is_ours(":alloc_for_decode_prealloc")


def test_both_servers_answer_alike(wrapped: Seen, replaced: Seen) -> None:
    lengths = [request.max_tokens for request in _REQUESTS]
    assert [len(reply.split()) for reply in wrapped.replies] == lengths
    assert wrapped.replies == replaced.replies
    assert "Failed to" not in wrapped.log + replaced.log


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("second-plugin")


def _serve(folder: Path, does: str, places: Sequence[Path], *, run: bool = False) -> Seen:
    name = f"{does}-{len(places)}"
    calls, log = folder / f"{name}.calls", folder / f"{name}.log"
    environment, model = prepared("0.5.23", folder / name, "dense")
    with running_server(
        environment,
        model,
        selection="all",
        log=log,
        launcher=(environment.script("sglang-perf-patches"), "run") if run else (),
        settings={"THEIR_PLUGIN": does, "THEIR_CALLS": str(calls), "THEIR_LOOK": " ".join(_LOOK)},
        python_path=places,
    ) as server:
        replies = complete(server.url, _REQUESTS)
        complete(server.url, [Completion("w1 w2", 4)])  # stock releases the last with the next
        run_there = live_and_run(server, patience_s=15)
        (scheduler,) = (each for each in processes(server) if each["role"] == "scheduler")
    return Seen(
        replies,
        {patch["id"]: (patch["state"], patch["reason"]) for patch in scheduler["patches"]},
        run_there,
        calls.stat().st_size,
        json.loads(Path(f"{calls}.json").read_text()),
        log.read_text(),
    )


def _distribution(folder: Path, about: tuple[str, str]) -> Path:
    """A folder with a distribution that has an entry point, for PYTHONPATH."""
    name, entry_point = about
    path = folder / name
    metadata = path / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{entry_point}\n")
    if name == _THEIRS[0]:
        shutil.copy(Path(__file__).with_name("their_plugin.py"), path)
    return path
