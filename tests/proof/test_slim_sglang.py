"""``verify`` on a slim, stock 0.5.23 without a GPU; every proof notices a patch that is broken."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import released
import tiers
from linux_mlx.environments import install_checkout, sglang_environment, variables
from linux_mlx.patience import limit_s
from matrix import applying
from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import room_of
from tests.proof import needs_no_scheduler

SOURCE = Path(__file__).parents[2] / "src"
HARNESS = Path(__file__).parents[1] / "harness"

BREAKS = {
    "mlx.kv-arena": ("at = self.longest - 1", "at = self.longest - 2"),
    "mlx.pool-write": (
        "stock(self, slots, _layers(k_all), _layers(v_all))",
        "stock(self, slots, _layers(k_all), _layers(k_all))",
    ),
    "mlx.first-buffer": ("return -(-(tokens + 1) // STEP) * STEP", "return STEP + tokens"),
    "mlx.last-row": (
        "hidden if rows is None else hidden[:, -rows:]",
        "hidden if rows is None else hidden[:, :rows]",
    ),
    "mlx.length-groups": (
        "mask[rows][..., : writer.longest]",
        "mask[rows][..., -writer.longest :]",
    ),
    "mlx.batched-prefill": (
        "return self.keys[row : row + 1, :, tokens]",
        "return self.keys[:1, :, tokens]",
    ),
    "mlx.next-turn": (
        "common = min(_common(self.tokens, prompt), len(prompt) - 1)",
        "common = min(len(self.tokens), len(prompt) - 1)",
    ),
    "mlx.hybrid-cache": (
        "slots.copy_from(held.mamba_cow_src_index, held.mamba_pool_idx)",
        "slots.copy_from(held.mamba_pool_idx, held.mamba_pool_idx)",
    ),
    "mlx.hybrid-defaults": ("return False", "return True"),
    "mlx.relay-device": ("device = pool.req_to_token.device", "pass"),
    "mla.draft-metadata": (
        "step.forward_decode_metadata = first.forward_decode_metadata",
        "step.forward_decode_metadata = None",
    ),
    "mla.frozen-kv-lengths": (
        'bound = sum(getattr(req, "kv", req).kv_allocated_len for req in batch.reqs)',
        "bound = count",
    ),
    "mla.page-table-bound": ("return whole[:, :width]", "return table"),
    "mla.request-broadcast": (
        "recv_reqs = [*recv_reqs, *(local_reqs or ())]",
        "recv_reqs = [*recv_reqs]",
    ),
    "mla.cache-acks": ("return [min(column)", "return [max(column)"),
    "mamba.gdn-prefill-graph": (
        "self.slots[:count].copy_(slots)",
        "self.slots[:count].copy_(slots.flip(0))",
    ),
    "mamba.mamba2-chunk-indices": (
        "[start % chunk_size for start in starts]",
        "[0 for start in starts]",
    ),
    "mamba.lightning-rows": (
        "torch.where(rows < 0, rows, stored)",
        "torch.where(rows < 0, rows, stored.flip(0))",
    ),
    "mamba.slot-exhaustion": ("needed(pool, [*others, req]) > obtainable(tree)", "False"),
    "mamba.host-states": (
        'stock(**{**kwargs, "host_size": sizes[0]} if sizes else kwargs)',
        "stock(**kwargs)",
    ),
    "swa.prefill-graph": (
        "torch.ge(self._numbers, tokens, out=self.unused)",
        "self.unused.zero_()",
    ),
    "swa.page-size-1": (
        'record_evicted(patch.state.decode, kwargs["req"], length - tail)',
        'record_evicted(patch.state.decode, kwargs["req"], length)',
    ),
    "swa.idle-admission": ("idle(self) and _serves(patch, self)", "False"),
    "swa.window-pool": ('int(kind == "sliding_attention")', 'int(kind != "sliding_attention")'),
    "swa.pool-ratio": ("full_cell=cell - ratio * swa_cell,", "full_cell=cell,"),
}
"""Patch → a line of it, and what it is broken to."""

IN_ANOTHER = {"mlx.length-groups": "mlx.kv-arena"}
"""Patch → the one whose folder has its line."""

OF_0_5_20 = {
    "slots that the request does not own": (
        "if owned is not None and cache_start + len(slot_ids) > owned:",
        "if False:",
    ),
    "before the request is released": (
        "if patch.state.owned is not None:\n        stock(self, req_id)",
        "stock(self, req_id)",
    ),
}
"""The same for mlx.released-rows, which 0.5.23 does not need."""


@pytest.mark.parametrize("what", [*BREAKS, *OF_0_5_20])
def test_the_line_to_break_is_there(what: str) -> None:
    broken_file(SOURCE, what)


def broken_file(source: Path, what: str) -> tuple[Path, str]:
    """The file of a folder's package that has a line to break, and its text when that is done."""
    patch = IN_ANOTHER.get(what, what) if what in BREAKS else "mlx.released-rows"
    before, after = (BREAKS | OF_0_5_20)[what]
    folder = source / "sglang_perf_patches" / "sets" / room_of(patch).replace(".", "/")
    texts = {file: file.read_text(encoding="utf-8") for file in folder.glob("*.py")}
    ((file, text),) = ((file, text) for file, text in texts.items() if before in text)
    assert text.count(before) == 1
    return file, text.replace(before, after)


def test_every_patch_has_a_line_to_break() -> None:
    """The patches that apply to the newest release, whose proofs must notice a fault."""
    assert set(BREAKS) == {id for name in sets.NAMES for id in applying(name, "0.5.23")}


def verify(source: Path, *patches: str) -> tuple[int, dict[str, Any]]:
    """What the command finds with a folder's package: its exit code, and each outcome."""
    place = released.slim("0.5.23")
    install_checkout(sglang_environment("0.5.23"))
    done = subprocess.run(
        [place.python, "-m", "sglang_perf_patches", "verify", "--json", *patches],
        env=variables(PYTHONPATH=f"{source}:{place.search[1]}", **dict(place.settings)),
        capture_output=True,
        text=True,
        timeout=limit_s(),
    )
    assert done.stdout, done.stderr[-3000:]
    by_patch = {outcome["patch"]: outcome for outcome in json.loads(done.stdout)["outcomes"]}
    return done.returncode, by_patch


def proved(
    source: Path, beginning: str, patches: list[str], release: str = "0.5.23"
) -> dict[str, Any]:
    place = released.tree(release, beginning=beginning)
    search = (place.search[0], source, *place.search[2:])
    # Nothing forks: a fork has imported this checkout's package.
    alone = released.Place(place.python, search)
    lines = released.answers(alone, HARNESS / "prove.py", *patches, **{tiers.DEPTH: "1"})
    return {line["case"]: line for line in lines}


def broken(folder: Path, *whats: str) -> Path:
    source = shutil.copytree(SOURCE, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for what in whats:
        file, text = broken_file(source, what)
        file.write_text(text, encoding="utf-8")
    return source


@pytest.mark.whole_matrix
def test_the_command_compares_on_a_cpu_with_mlx_and_says_what_it_need_not() -> None:
    code, by_patch = verify(SOURCE, "mlx.last-row", "mamba.slot-exhaustion", "mla")
    assert code == 0, by_patch
    assert by_patch["mlx.last-row"]["compared"] > 0
    assert by_patch["mamba.slot-exhaustion"]["word"] == "proven"
    assert by_patch["mla.page-table-bound"]["reason"] == "needs a CUDA GPU"


@pytest.mark.whole_matrix
def test_it_fails_on_a_patch_that_is_broken(tmp_path: Path) -> None:
    code, by_patch = verify(broken(tmp_path, "mlx.last-row"), "mlx.last-row")
    assert code == 1
    assert by_patch["mlx.last-row"]["word"] in {"different", "failed"}


@pytest.mark.whole_matrix
@pytest.mark.parametrize("what", OF_0_5_20)
def test_the_proof_of_released_rows_fails_if_it_writes(what: str, tmp_path: Path) -> None:
    patch = "mlx.released-rows"
    lines = proved(broken(tmp_path, what), "stubs", [patch], "0.5.20")
    assert "a prefix has changed" in lines[patch]["different"]


@pytest.mark.whole_matrix
def test_every_mlx_case_is_equal() -> None:
    code, by_patch = verify(SOURCE, "mlx")
    assert code == 0, by_patch
    equal = {id for id, outcome in by_patch.items() if outcome["word"] == "equal"}
    assert equal == {id for id in BREAKS if needs_no_scheduler(id)}
    assert all(by_patch[id]["compared"] > 0 for id in equal)


@pytest.mark.whole_matrix  # each set's proof as a whole
@pytest.mark.parametrize("name", sets.NAMES)
def test_each_proof_fails_on_a_patch_that_is_broken(name: str, tmp_path: Path) -> None:
    patches = [id for id in BREAKS if id.startswith(f"{name}.")]
    lines = proved(broken(tmp_path, *patches), "mlx" if name == "mlx" else "stubs", patches)
    assert [id for id in patches if not {"different", "failed"} & lines[id].keys()] == []
