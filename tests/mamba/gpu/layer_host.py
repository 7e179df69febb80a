"""What the host does for each gated-delta-net layer of an eager prefill, and what could go.

usage: python tests/mamba/gpu/layer_host.py OUT.json

Runs 18 layers of Qwen3-Next's dimensions of the sglang on PYTHONPATH, on an NVIDIA GPU. For a
batch that keeps the host busy all the time it gives launches and microseconds a layer: of stock,
of the whole set, of the set without ``mamba.layer-views``, and of the set with more work of a layer
prepared once a forward. These trials say what a patch of that kind could bring; the project has
none.

Without a GPU the layers are small and no Triton kernel runs: the times are of everything else that
the host does, and states are not compared.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sglang_perf_patches.proof import lent

if torch.cuda.is_available():
    lent.lend_beside_wheels()
else:
    lent.lend()

import sglang

import sglang_perf_patches
from sglang_perf_patches.live import engine
from sglang_perf_patches.proof.comparing import differs, installed
from sglang_perf_patches.proof.mamba import play
from sglang_perf_patches.proof.mamba.batches import Batch, Request
from sglang_perf_patches.proof.mamba.rig import QWEN3_NEXT, SMALL, Rig

ON_GPU = torch.cuda.is_available()
LAYERS = 18
ROUNDS = 15
FORWARDS = 10
launched: list[None] = []
"""One for each of Triton's kernels that did not run."""

BATCHES = {
    "1x519, state at a chunk": Batch((Request(519),)),
    "8x64, states after the last token": Batch((Request(64),) * 8),
    "1x519, nothing tracked": Batch((Request(519, tracked=False),)),
}


def synchronize() -> None:
    """Where there is something to wait for."""
    if ON_GPU:
        torch.cuda.synchronize()


class _Prefixes:
    def __init__(self, has_state: torch.Tensor) -> None:
        self.has_state = has_state

    def __gt__(self, _: object) -> torch.Tensor:
        return self.has_state


def prefixes_once(rig: Rig) -> dict[tuple[Any, str], Any]:
    """``extend_prefix_lens > 0`` once a forward."""
    own = type(rig.backend)
    inner = own.forward_extend

    def forward_extend(self: Any, layer: Any, forward_batch: Any, *rest: Any, **more: Any) -> Any:
        kept = vars(self.forward_metadata).get("_trial")
        if kept is None or kept[0] is not forward_batch:
            static = copy.copy(forward_batch)
            static.extend_prefix_lens = _Prefixes(forward_batch.extend_prefix_lens > 0)
            kept = self.forward_metadata._trial = (forward_batch, static)
        return inner(self, layer, kept[1], *rest, **more)

    return {(own, "forward_extend"): forward_extend}


def plain_copies(rig: Rig) -> dict[tuple[Any, str], Any]:
    """Tracked states by index_select and index_copy_ in place of indexing; up to 0.5.16.

    Later layers ask the metadata that this hides whether to track at all.
    """
    own = type(rig.backend)
    base = next(c for c in own.__mro__ if "_track_mamba_state_extend" in vars(c))
    inner = own.forward_extend

    def forward_extend(
        self: Any, layer: Any, forward_batch: Any, mixed_qkv: Any, *rest: Any, **more: Any
    ) -> Any:
        plan = self.forward_metadata
        if not plan.has_mamba_track_mask:
            return inner(self, layer, forward_batch, mixed_qkv, *rest, **more)
        kept = vars(plan).get("_quiet")
        if kept is None:
            kept = copy.copy(plan)
            kept.has_mamba_track_mask = False
            rows, window = plan.track_conv_indices.shape
            kept._rows = (plan.track_conv_indices.reshape(-1), rows, window, plan)
            plan._quiet = kept
        at, rows, window, _ = kept._rows
        conv = self.req_to_token_pool.mamba2_layer_cache(layer.layer_id).conv[0]
        taken = mixed_qkv.index_select(0, at).view(rows, window, -1).transpose(1, 2)
        conv.index_copy_(0, plan.conv_states_mask_indices, taken)
        self.forward_metadata = kept
        try:
            return inner(self, layer, forward_batch, mixed_qkv, *rest, **more)
        finally:
            self.forward_metadata = plan

    def _track_mamba_state_extend(
        self: Any, forward_batch: Any, h: Any, states: Any, metadata: Any
    ) -> None:
        rows = vars(metadata).get("_rows")
        if rows is None:
            return
        plan = rows[3]
        if plan.track_ssm_h_src.numel() > 0:
            taken = h.squeeze(0).index_select(0, plan.track_ssm_h_src).to(states.dtype)
            states.index_copy_(0, plan.track_ssm_h_dst, taken)
        if plan.track_ssm_final_src.numel() > 0:
            taken = states.index_select(0, plan.track_ssm_final_src)
            states.index_copy_(0, plan.track_ssm_final_dst, taken)

    return {
        (own, "forward_extend"): forward_extend,
        (base, "_track_mamba_state_extend"): _track_mamba_state_extend,
    }


TRIALS: dict[str, tuple[Callable[[Rig], dict[tuple[Any, str], Any]], ...]] = {
    "prefixes once": (prefixes_once,),
    "plain copies": (plain_copies,),
    "both": (prefixes_once, plain_copies),
}


@contextlib.contextmanager
def tried(rig: Rig, makes: Any) -> Iterator[None]:
    before: list[tuple[Any, str, Any]] = []
    for make in makes:
        for (owner, name), value in make(rig).items():
            before.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            delattr(owner, name) if value is None else setattr(owner, name, value)


class Side:
    """The set on or off, with a trial or none."""

    def __init__(self, rig: Rig, changes: list[Any], makes: Any) -> None:
        self.rig, self.changes, self.makes = rig, changes, makes

    def __enter__(self) -> None:
        for change in self.changes:
            change.apply()
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(tried(self.rig, self.makes))

    def __exit__(self, *_: object) -> None:
        self.stack.close()
        for change in self.changes:
            change.slot.clear()


def forward(rig: Rig, wanted: Batch, inputs: Any) -> float:
    """Microseconds a layer until all is launched."""
    batch = play.known_batch(rig, wanted)
    rig.backend.init_forward_metadata(batch)
    for layer, given in zip(rig.layers[:1], inputs, strict=False):  # chunk indices are made here
        rig.run(layer, batch, given)
    synchronize()
    began = time.perf_counter()
    for layer, given in zip(rig.layers, inputs, strict=True):
        rig.run(layer, batch, given)
    taken = time.perf_counter() - began
    synchronize()
    return 1e6 * taken / len(rig.layers)


def results(rig: Rig, wanted: Batch, inputs: Any) -> list[torch.Tensor]:
    rig.fill()
    outputs = [out.clone() for out in rig.forward(play.known_batch(rig, wanted), inputs)]
    return [*outputs, *(state.clone() for state in rig.states())]


def calls(rig: Rig, wanted: Batch, inputs: Any) -> dict[str, Any]:
    """Launches a layer, and where the host's time goes."""
    from torch.profiler import ProfilerActivity, profile

    launched.clear()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + ON_GPU]) as found:
        forward(rig, wanted, inputs)
    events = found.key_averages()
    launches = sum(e.count for e in events if "LaunchKernel" in e.key) + len(launched)
    aten = {
        e.key: [round(e.count / (LAYERS + 1), 2), round(e.self_cpu_time_total)]
        for e in events
        if "aten::" in e.key
    }
    longest = sorted(aten.items(), key=lambda item: -item[1][1])[:24]
    operators = sum(e.count for e in events if "aten::" in e.key)
    return {
        "launches a layer": round(launches / (LAYERS + 1), 2),
        "operator calls a layer": round(operators / (LAYERS + 1), 2),
        "aten": dict(longest),
    }


def main(out: Path) -> None:
    torch.inference_mode().__enter__()
    report = engine.activate("mamba", tree=installed())
    live = [state.id for state in report.patches if state.state == "live"]
    size = replace(QWEN3_NEXT if ON_GPU else SMALL, layers=LAYERS)
    rig = Rig(size, "cuda" if ON_GPU else "cpu", slots=40)
    if not ON_GPU:
        interpreter = importlib.import_module("triton.runtime.interpreter")
        interpreter.GridExecutor.__call__ = lambda *_, **__: launched.append(None)
    live = [state.id for state in engine.activate("mamba").patches if state.state == "live"]
    changes = [slot.shown() for each in engine._current for slot in each._slots.values()]
    for change in changes:
        change.slot.clear()
    less = [change.slot.without("mamba.layer-views") for change in changes]
    sides = {
        "stock": Side(rig, [], ()),
        "set": Side(rig, changes, ()),
        "without views": Side(rig, [change for change in less if change.layers], ()),
    }
    has_names = hasattr(sys.modules[play.METADATA].ForwardMetadata, play.OWN[0])
    tracks_always = int(sglang.__version__.split(".")[2]) < 17
    sides |= {
        name: Side(rig, changes, makes)
        for name, makes in TRIALS.items()
        if has_names and (tracks_always or plain_copies not in makes)
    }
    found: dict[str, Any] = {"sglang": sglang.__version__, "torch": torch.__version__, "live": live}
    for name, wanted in BATCHES.items():
        inputs = rig.inputs(wanted.tokens)
        expected = results(rig, wanted, inputs)
        here: dict[str, Any] = {}
        taken: dict[str, list[float]] = {side: [] for side in sides}
        for side, entered in sides.items():
            with entered:
                difference = differs(expected, results(rig, wanted, inputs))
                here[side] = calls(rig, wanted, inputs)
                if ON_GPU:
                    here[side]["differs"] = difference
        for number in range(ROUNDS):
            for side in list(sides) if number % 2 else list(sides)[::-1]:
                with sides[side]:
                    forward(rig, wanted, inputs)
                    each = [forward(rig, wanted, inputs) for _ in range(FORWARDS)]
                    taken[side].append(statistics.median(each))
        for side, each in taken.items():
            ratios = [new / old for new, old in zip(each, taken["set"], strict=True)]
            here[side]["us a layer"] = [round(q, 1) for q in statistics.quantiles(each, n=4)]
            here[side]["to the set"] = [round(q, 3) for q in statistics.quantiles(ratios, n=4)]
            print(name, side, {k: v for k, v in here[side].items() if k != "aten"}, flush=True)
        found[name] = here
        out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({k: v["set"]["aten"] for k, v in found.items() if isinstance(v, dict)}))
    sglang_perf_patches.deactivate()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
