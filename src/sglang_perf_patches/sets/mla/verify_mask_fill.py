"""mla.verify-mask-fill: the prefix half of the Triton verify's tree mask is not filled.

The buffer holds draft x (prefix + draft) cells per request. The tree kernel writes the draft x
draft cells, and attention skips the prefix cells (``skip_prefix_custom_mask``), so filling the
whole buffer every step is dead work. Rows that only pad a replayed graph, whose outputs are
dropped, then attend by what an earlier step left in their cells. Upstream has no such change.
"""

from __future__ import annotations

import weakref
from typing import Any

from ...model.patching import Patching
from .scales import one_scale
from .tree_builder import BUFFER, BUILD_TREE, MODE, unfilled

BACKEND = "sglang.srt.layers.attention.triton_backend:TritonAttnBackend"
BUFFERS = f"{BACKEND}.get_verify_buffers_to_fill_after_draft"
MASK = f"{BACKEND}.verify_mask"
TRIVIAL = "sglang.srt.speculative.eagle_worker_v2:EAGLEWorkerV2._build_trivial_verify_input"

_ONE_SCALE = "sglang_perf_patches_one_scale"

WORTH = 16 << 20
"""Bytes of mask from which marking one cell per request is faster than filling the buffer."""


def install_buffers(patching: Patching) -> None:
    """Up to 0.5.13.post1: the worker takes a bare buffer from the backend."""
    _ask_scales(patching)
    _skip_fill(patching, _Trivial())


def install_buffers_and_trivial(patching: Patching) -> None:
    """0.5.14 to 0.5.16, which also verify trees of one node."""
    _ask_scales(patching)
    trivial = _Trivial()
    _skip_fill(patching, trivial)
    _mark_single_cells(patching, trivial)


def install_masks(patching: Patching) -> None:
    """From 0.5.17 on: the backend declares whether anything reads its mask."""
    _ask_scales(patching)
    ran = patching.ran
    trivial = _Trivial()
    skips = _Skips(patching)
    copied = patching.module("msgspec.structs").replace

    def make(inner: property) -> property:
        stock: Any = inner.fget

        def verify_mask(self: Any) -> Any:
            mask = stock(self)
            if mask is None or not skips(self):
                return mask
            ran.seen = True
            if trivial.lends(mask.buffer, self.max_context_len):
                return copied(mask, buffer=trivial.lend(mask.buffer))
            return copied(mask, is_read=False)

        return property(verify_mask)

    patching.override(MASK, make)
    _mark_single_cells(patching, trivial)


def _ask_scales(patching: Patching) -> None:
    """Have each backend remember whether its model's activations share one scale over all rows.

    Rows that only pad a batch attend by what is in their cells, and with such a scale they reach
    the others.
    """

    def make(inner: Any) -> Any:
        def init(self: Any, model_runner: Any, *given: Any, **named: Any) -> None:
            inner(self, model_runner, *given, **named)
            setattr(self, _ONE_SCALE, one_scale(model_runner.model_config))

        return init

    patching.anytime("stock fills the whole mask before it is read again")
    patching.override(f"{BACKEND}.__init__", make)


class _Skips:
    """Whether the attention of a backend skips the prefix cells of its mask."""

    def __init__(self, patching: Patching) -> None:
        self._gate = patching.gate
        self._told = False

    def __call__(self, backend: Any) -> bool:
        # Only the backend has the right value. From 0.5.19 on the server's arguments hold what the
        # user set, and --rl-on-policy-target makes the backend deterministic too.
        if backend.enable_deterministic:
            if not self._told:
                self._told = True
                self._gate("the deterministic attention kernel reads the mask's prefix cells")
            return False
        if getattr(backend, _ONE_SCALE, False):
            if not self._told:
                self._told = True
                self._gate("activations share one scale with the rows that only pad a batch")
            return False
        return True


class _Trivial:
    """The building of a one-node tree, which fills its buffer.

    While one is built it gets the first cell alone, as a tensor of its own.

    Attributes:
        requests: how many it is built for; 0 while none is built.
        buffer: the whole buffer, once it was taken.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.buffer: Any = None

    def lends(self, buffer: Any, context: int) -> bool:
        """Whether marking is faster, and has room: up to 0.5.16 a batch may be too large for it."""
        room = 0 < self.requests * context <= buffer.numel()
        return room and bool(buffer.nbytes >= WORTH)

    def lend(self, buffer: Any) -> Any:
        self.buffer = buffer
        return buffer[:1]


def _skip_fill(patching: Patching, trivial: _Trivial) -> None:
    """Show the tree builder a buffer that its fill leaves as it is."""
    ran = patching.ran
    skips = _Skips(patching)
    full_mask = patching.module("sglang.srt.speculative.eagle_utils").TreeMaskMode.FULL_MASK
    # The last buffer from a Triton backend, and the tensor that the builder gets for it.
    handed: list[tuple[weakref.ref[Any], Any]] = []

    def make_buffers(inner: Any) -> Any:
        def get_verify_buffers_to_fill_after_draft(self: Any) -> list[Any]:
            mask, positions = inner(self)
            if mask is not None and skips(self):
                if trivial.lends(mask, self.max_context_len):
                    return [trivial.lend(mask), positions]
                if not handed or handed[0][0]() is not mask:
                    handed[:] = [(weakref.ref(mask), unfilled(mask))]
            return [mask, positions]

        return get_verify_buffers_to_fill_after_draft

    def make_build(inner: Any) -> Any:
        def build_tree_kernel_efficient(*given: Any, **named: Any) -> Any:
            if not handed or len(given) <= BUFFER or given[MODE] != full_mask:
                return inner(*given, **named)
            ours, shown = handed[0]
            buffer = given[BUFFER]
            if buffer is None or ours() is not buffer:
                return inner(*given, **named)
            ran.seen = True
            made = inner(*given[:BUFFER], shown, *given[BUFFER + 1 :], **named)
            return (buffer, *made[1:])

        return build_tree_kernel_efficient

    patching.override(BUFFERS, make_buffers)
    patching.override(BUILD_TREE, make_build)


def _mark_single_cells(patching: Patching, trivial: _Trivial) -> None:
    """After a one-node tree was built on one cell, write the one cell of each request.

    Request i has seq_lens[i] prefix cells and then the cell of its node, which must be true.
    """
    ran = patching.ran

    def make(inner: Any) -> Any:
        def _build_trivial_verify_input(self: Any, batch: Any) -> Any:
            trivial.requests = batch.seq_lens.numel()
            try:
                verify_input = inner(self, batch)
                buffer = trivial.buffer
            finally:
                trivial.requests, trivial.buffer = 0, None
            if buffer is None or verify_input.custom_mask.data_ptr() != buffer.data_ptr():
                return verify_input  # stock allocated a mask for a batch that does not fit
            ran.seen = True
            cells = (batch.seq_lens.long() + 1).cumsum(0) - 1
            buffer.index_fill_(0, cells, 1)
            verify_input.custom_mask = buffer
            return verify_input

        return _build_trivial_verify_input

    patching.override(TRIVIAL, make)
