"""A copy on the host of the table that says where in the pool the state of each request is.

Needs torch: imported by the install function only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import wrapt

from . import host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...model.state import RunFlag


class Slots:
    """A pool's ``req_index_to_mamba_index_mapping`` as the host knows it.

    Attributes:
        table: the pool's own, on the device: for each of its rows the slot of a request's state,
            int32 of shape ``[rows]``.
        copy: the same on the host, for a GPU in pinned memory, as of the last time
            that rows were allotted.
    """

    def __init__(self, table: torch.Tensor) -> None:
        """Nothing is copied yet."""
        self.table = table
        self.copy = torch.empty(table.shape, dtype=table.dtype, pin_memory=table.is_cuda)
        self._kept: dict[int, tuple[Any, Any]] = {}

    def keep(self, rows: Sequence[int], reqs: Sequence[Any]) -> None:
        """Start a copy of the table, in which the rows of these requests have just been written."""
        self.copy.copy_(self.table, non_blocking=True)
        arrival = None
        if self.table.is_cuda:
            arrival = torch.cuda.Event()
            arrival.record()
        for row, req in zip(rows, reqs, strict=True):
            self._kept[row] = (_state_of(req), arrival)

    def of(self, row: Any, req: Any) -> torch.Tensor | None:
        """The slot of a request, 0-dim int32 on the host; None if this row was not copied for it.

        Raises:
            HostDataMismatch: under ``SGLANG_PERF_PATCHES_DEBUG=1``, if the device has another.
        """
        state, arrival = self._kept.get(row, (None, None)) if type(row) is int else (None, None)
        if state is None or state is not _state_of(req):
            return None
        if arrival is not None:
            arrival.synchronize()
        # A copy: the next allotment writes the same memory, and a transfer reads it at its leisure.
        slot = self.copy[row].clone()
        if host.is_debugging():
            host.check_slot(slot, self.table[row])
        return slot


class _Table:
    """Stands for the table while a request is sent: one row of it is read."""

    def __init__(self, slots: Slots, req: Any, ran: RunFlag) -> None:
        self._slots = slots
        self._req = req
        self._ran = ran

    def __getitem__(self, row: Any) -> torch.Tensor:
        slot = self._slots.of(row, self._req)
        if slot is None:
            return self._slots.table[row]
        self._ran.seen = True
        return slot


class _Pool(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """A pool with a `_Table` in place of its table."""

    _self_table: _Table

    @property
    def req_index_to_mamba_index_mapping(self) -> _Table:
        return self._self_table


class _Scheduler(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """A scheduler with a `_Pool` in place of its pool."""

    _self_pool: _Pool

    @property
    def req_to_token_pool(self) -> _Pool:
        return self._self_pool


def knowing(scheduler: Any, slots: Slots, req: Any, ran: RunFlag) -> Any:
    """The scheduler itself, except that its pool's table has the slot of this request at hand."""
    pool = _Pool(scheduler.req_to_token_pool)
    pool._self_table = _Table(slots, req, ran)
    made = _Scheduler(scheduler)
    made._self_pool = pool
    return made


def _state_of(req: Any) -> Any:
    """The tensor by which a request holds its state: another request's is another tensor."""
    return req.kv.mamba_pool_idx
