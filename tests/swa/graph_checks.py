"""Checks of ``swa.prefill-graph`` next to what its proof compares, with the proof's stand-ins."""

import importlib
from typing import Any
from unittest import mock

import torch

import sglang_perf_patches as ours
from sglang_perf_patches.live import engine
from sglang_perf_patches.sets import graphs
from sglang_perf_patches.sets.swa.prefill_graph import body, inputs
from sglang_perf_patches.verify.comparing import live, same
from sglang_perf_patches.verify.stock import NoneByDefault
from sglang_perf_patches.verify.stock import publish_server as publish
from sglang_perf_patches.verify.swa.prefill_graph import PATCH, Play, furnished
from tests.proof.swa import prefill_graph as proof

ONE = Play((((13, 0),), ((9, 20),)), 16, smaller=8)
LONG = Play((((2, 900),),), 16, None, smaller=8)
"""Stock splits the keys of so few tokens behind so long a prefix; not those of the bucket."""


def broken_graphs() -> dict[str, str]:
    """What the proof says while something is broken in a way; "" if it passes."""
    said = dict.fromkeys(BREAKS, "")
    for how, change in BREAKS.items():
        publish()
        try:
            with mock.patch.object(*change):
                same(PATCH, proof.play, [LONG if how == "any choice" else ONE])
        except Exception as error:
            said[how] = f"{type(error).__name__}: {error}"
    return said


def waits_for_each_layer() -> list[int]:
    """The layers whose KV a replay waits for, if requests load some from the host."""
    publish()
    asked: list[int] = []
    replay = proof.Rig.replay

    def loading(self: Any, requests: Any) -> Any:
        pool = self.pool
        pool.layer_transfer_counter = NoneByDefault(
            consumer_index=0, wait_until=lambda layer: asked.append(int(layer))
        )
        try:
            return replay(self, requests)
        finally:
            pool.layer_transfer_counter = None

    with live(PATCH), mock.patch.object(proof.Rig, "replay", loading):
        proof.play(Play((((13, 0),),), 16, smaller=8))
    return sorted(set(asked))


def takes_its_announcement_back() -> list[bool]:
    """Whether two ranks agree while the second one is missing, and once it has come too late."""
    store = torch.distributed.HashStore()
    with (
        mock.patch.object(graphs, "_store", return_value=store),
        mock.patch.object(graphs.distributed, "is_initialized", return_value=True),
        mock.patch.object(graphs.distributed, "get_rank", return_value=0),
    ):
        key = graphs.announce(PATCH, 1)
        first = graphs.agree(key, [0, 1])
        store.add(f"{key}1", 1)
        return [first, graphs.agree(key, [0, 1])]


def stocks_once_it_is_off() -> list[bool]:
    """Whether the graph of a replay was ours: while the patch is live, then after it is off."""
    publish()
    found: list[bool] = []
    replay = proof.Rig.replay

    def noted(self: Any, requests: Any) -> Any:
        told = replay(self, requests)
        found.append(told[1])
        if len(found) == 1:
            ours.deactivate()
        return told

    with mock.patch.object(proof.Rig, "replay", noted), live(PATCH, ran=None):
        proof.play(Play((((13, 0),), ((13, 0),)), 16, None, smaller=8))
    return found


def keeps_stocks_graphs() -> dict[str, str | None]:
    """Why each of these servers keeps stock's graphs."""
    publish()
    reasons: dict[str, str | None] = {}
    wanted = Play((((13, 0),),), 16, None, smaller=8)
    for name, change in LEFT.items():
        with furnished(wanted):
            rig = proof.Rig(wanted)
            change(rig)
            reasons[name] = body.unserved(importlib.import_module, rig.stocks, [*rig.layers])
    for name, change in KEPT.items():
        with mock.patch.object(proof.Rig, "capture", _changed(change)), live(PATCH, ran=False):
            proof.play(wanted)
            engine.look_again()
            report = engine.report()
            assert report is not None
            reasons[name] = report.of(PATCH).reason
    return reasons


def _changed(change: Any) -> Any:
    capture = proof.Rig.capture

    def changed(self: Any) -> None:
        change(self)
        capture(self)

    return changed


def _another_kernel(rig: Any) -> None:
    """FlashAttention that splits in another way than ours know."""
    module: Any = importlib.import_module(type(rig.backend).__module__)
    attend = module.flash_attn_with_kvcache
    module.flash_attn_with_kvcache = lambda *a, num_splits=0, **k: attend(
        *a, num_splits=num_splits + 1 if num_splits else 0, **k
    )


def _asks_for_more(rig: Any) -> None:
    """A model that wants more of attention than its output."""
    forward = rig.layers[0].forward
    rig.layers[0].forward = lambda *a, **k: forward(*a, q_rope=None, **k)


def _attribute(name: str, value: Any) -> Any:
    return lambda rig: setattr(rig.backend, name, value)


LEFT: dict[str, Any] = {
    "another version": _attribute("fa_impl_ver", 4),
    "MLA": _attribute("use_mla", True),
    "quantised KV": _attribute("kv_cache_dtype", torch.float8_e4m3fn),
    "a context-parallel server": _attribute("attn_cp_size", 2),
    "a layer without causality": lambda rig: setattr(rig.layers[0], "is_cross_attention", True),
    "long buckets": lambda rig: setattr(rig.stocks, "capture_num_tokens", [1, 4096]),
}
KEPT: dict[str, Any] = {
    "a draft": lambda rig: setattr(rig.runner, "is_draft_worker", True),
    "another kernel": _another_kernel,
    "more than the output": _asks_for_more,
}
"""Those that only a capture tells."""


def choices_of_lengths() -> dict[str, int]:
    """Numbers of tokens for which the choice differs from the stand-in's own, of so many."""
    others = seen = 0
    for kind in (inputs.Kind(127, 8, 1, 64, 64), inputs.Kind(1023, 16, 8, 256, 256)):
        for page in (1, 16, 128):
            for tokens in range(2, 2050, 41):
                for prefix in (0, 128, 1000, 9000):
                    chosen = inputs.choice(kind, tokens, tokens + prefix, page, proof.UNITS)
                    packed, heads = kind.heads // kind.kv_heads, kind.kv_heads
                    length = -(-(tokens + prefix) // page) * page
                    told = proof.chosen(
                        *(kind.width, packed, heads, page, tokens, length, kind.window)
                    )
                    others += (chosen.has_window, chosen.by_pages, chosen.splits) != told
                    seen += 1
    return {"others": others, "seen": seen}


def _unfilled(self: Any, *_: Any) -> None:
    """The first batch's lengths and slots stay."""
    if not hasattr(self, "_filled"):
        self._filled = True
        _FILL(self, *_)


_FILL = inputs.Inputs.fill


def _all_rows(self: Any, metadata: Any, tokens: int, bucket: int) -> None:
    _FILL(self, metadata, tokens, bucket)
    self.unused.zero_()


def _old_slots(self: Any, metadata: Any, tokens: int, bucket: int) -> None:
    slots = self._window_slots.clone()
    _FILL(self, metadata, tokens, bucket)
    self._window_slots[tokens:bucket] = slots.fill_(int(metadata.swa_out_cache_loc[0]))[
        tokens:bucket
    ]


BREAKS: dict[str, tuple[Any, str, Any]] = {
    "nothing is filled": (inputs.Inputs, "fill", _unfilled),
    "rows without a token keep their output": (inputs.Inputs, "fill", _all_rows),
    "rows without a token write a request's slot": (inputs.Inputs, "fill", _old_slots),
    "any choice": (inputs, "_splits", lambda *_: 1),
}
