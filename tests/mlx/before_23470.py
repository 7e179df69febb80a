"""Undoes sgl-project/sglang#23470 on released code that has it."""

from __future__ import annotations

from typing import Any


def undo(wrapper: Any) -> None:
    """Leave 0.5.11's decode context its own fields: a layer that asks for more makes it anew."""

    def lengths(context: Any) -> Any:
        return wrapper.mx.array(context.seq_lens, dtype=wrapper.mx.int32)

    def valid(context: Any) -> Any:
        return wrapper.mx.array([n + 1 for n in context.seq_lens], dtype=wrapper.mx.int32)

    def positions(context: Any) -> Any:
        return wrapper.mx.arange(max(context.seq_lens) + 1)

    context = wrapper.BatchedDecodeContext
    context.__post_init__ = lambda self: None
    context.offsets = property(lengths)
    context.valid_lens = property(valid)
    context.positions = property(positions)
    context.max_len = property(lambda self: max(self.seq_lens) + 1)
    context.needs_padding = property(lambda self: min(self.seq_lens) < max(self.seq_lens))
    context.pad_sizes = property(lambda self: [max(self.seq_lens) - n for n in self.seq_lens])
