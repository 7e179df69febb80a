"""mla.shared-draft-tables: one page table for all steps of a FlashAttention draft.

The steps of a draft with topk = 1 read the same requests, each one token further than the step
before, so the table of the last step serves them all. Upstream marks it as a TODO.
"""

from __future__ import annotations

from typing import Any

from ...model.patching import Patching

FA_DRAFT = "sglang.srt.layers.attention.flashattention_backend:FlashAttentionMultiStepBackend"

WORTH = 3
"""Backends of a draft (one less than its steps) from which one table is faster than many.

Of two it was as fast when two kernels derived the lengths, and it was not timed since one does.
"""

_TABLE = "page_table_draft_decode"
_LENGTHS, _OFFSETS = "cache_seqlens", "cu_seqlens_k"


def install_flash_attention(patching: Patching) -> None:
    """Replay: the last step's kernel builds the table, the other steps' lengths are derived."""
    patching.anytime("stock's steps fill the table that they share one by one, the longest last")
    ran = patching.ran

    def make_state(inner: Any) -> Any:
        def init_cuda_graph_state(self: Any, max_bs: int, max_num_tokens: int) -> None:
            inner(self, max_bs, max_num_tokens)
            self.sglang_perf_patches_draft = None
            if self.topk <= 1 and len(self.attn_backends) >= WORTH:
                self.sglang_perf_patches_draft = _share(self.attn_backends)

        return init_cuda_graph_state

    def make_init(inner: Any) -> Any:
        def init_forward_metadata_out_graph(
            self: Any, forward_batch: Any, in_capture: bool = False
        ) -> None:
            shared = getattr(self, "sglang_perf_patches_draft", None)
            if in_capture or shared is None or forward_batch.encoder_lens is not None:
                inner(self, forward_batch, in_capture=in_capture)
                return
            ran.seen = True
            steps = self.attn_backends
            self.attn_backends = _LastStep(steps)
            try:
                inner(self, forward_batch)
            finally:
                self.attn_backends = steps
            shared.derive()
            for step in steps[:-1]:
                step.forward_metadata = step.decode_cuda_graph_metadata[forward_batch.batch_size]
                step.forward_metadata_spec_decode_expand = None

        return init_forward_metadata_out_graph

    patching.override(f"{FA_DRAFT}.init_cuda_graph_state", make_state)
    patching.override(f"{FA_DRAFT}.init_forward_metadata_out_graph", make_init)


class _Idle:
    """In place of a step that another one prepares."""

    def init_forward_metadata_out_graph(self, *_given: Any, **_named: Any) -> None:
        pass


class _LastStep:
    """The steps of a draft as stock goes through them, of which the last one alone acts."""

    def __init__(self, steps: list[Any]) -> None:
        self._steps = steps
        self._idle = _Idle()

    def __getitem__(self, step: int) -> Any:
        return self._steps[step] if step == len(self._steps) - 1 else self._idle


class _Lengths:
    """The lengths of all steps and their sums in one tensor, which one kernel derives.

    Attributes:
        steps: int32, (steps, cells): of each step, the tokens that each request's step reads, and
            from the cell `offsets` on their sums before each request.
        offsets: see `steps`.
    """

    def __init__(self, lengths: Any, sums: Any, count: int) -> None:
        """Make room for `count` steps of the last step's `lengths` and `sums`."""
        import torch

        # Multiples of four cells keep each step's parts aligned like stock's own tensors.
        self.offsets = -(-lengths.numel() // 4) * 4
        cells = self.offsets + -(-sums.numel() // 4) * 4
        self.steps = lengths.new_zeros((count, cells))
        self._most, self._ends = lengths.numel(), sums.numel()
        back = torch.arange(count - 1, 0, -1, dtype=torch.int32, device=lengths.device)[:, None]
        shorter = lengths.new_zeros(cells)
        shorter[: self._most] = 1
        shorter[self.offsets :] = torch.arange(cells - self.offsets, device=lengths.device)
        self._shorter = back * shorter

    def of_step(self, step: int) -> tuple[Any, Any]:
        """Where a step's lengths and sums are kept."""
        row = self.steps[step]
        return row[: self._most], row[self.offsets : self.offsets + self._ends]

    def derive(self) -> None:
        """Write the earlier steps' values from those of the last step.

        All cells are: of requests that a batch has not, nobody reads them.
        """
        import torch

        torch.sub(self.steps[-1:], self._shorter, out=self.steps[:-1])


def _share(steps: list[Any]) -> _Lengths | None:
    """Let the steps hold one page table; None where their metadata has parts unknown here."""
    for step in steps:
        if step.use_sliding_window_kv_pool or getattr(step, "_kv_shard_pool", None) is not None:
            return None
    states = [step.decode_cuda_graph_metadata for step in steps]
    last = states[-1]
    if _TABLE not in last:
        return None

    lengths = _Lengths(last[_LENGTHS], last[_OFFSETS], len(steps))
    for step, state in enumerate(states):
        state[_LENGTHS], state[_OFFSETS] = lengths.of_step(step)
        state[_TABLE] = last[_TABLE]
    return lengths
