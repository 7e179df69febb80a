"""What the scheduler decides to track of each request, kept for the batch that it makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...model.patching import Patching, replaces
from .references import RECORDED

_RECORD = "_sglang_perf_patches_rows"


def record(patching: Patching, rows_from: Callable[[Any], Any]) -> None:
    """Keep what the scheduler decides for each request, and attach it to the tensors it makes.

    `rows_from` is `from_lists` or `from_entries`.
    """
    from . import host

    of_batch, of_request = RECORDED

    @replaces(patching, of_batch)
    def prepare_for_extend(self: Any, *, inner: Any) -> Any:
        rows: list[tuple[bool, int]] = []
        self.__dict__[_RECORD] = rows
        try:
            result = inner(self)
        finally:
            del self.__dict__[_RECORD]
        if rows:
            mask, seqlens = zip(*rows, strict=True)
            host.attach_track(self, mask, seqlens)
        return result

    patching.override(of_request, rows_from)


def from_lists(inner: Any) -> Any:
    """Up to 0.5.12.post1: the scheduler appends each request's row to lists."""

    def prepare(self: Any, req: Any, mask: list[bool], indices: list[int], seqlens: Any) -> Any:
        result = inner(self, req, mask, indices, seqlens)
        rows = self.__dict__.get(_RECORD)
        if rows is not None:
            rows.append((mask[-1], seqlens[-1]))
        return result

    return prepare


def from_entries(inner: Any) -> Any:
    """0.5.13 to 0.5.20: each request's row is an entry object."""

    def prepare(self: Any, req: Any) -> Any:
        entry = inner(self, req)
        rows = self.__dict__.get(_RECORD)
        if rows is not None:
            rows.append((entry.track_mask, entry.track_seqlen))
        return entry

    return prepare
