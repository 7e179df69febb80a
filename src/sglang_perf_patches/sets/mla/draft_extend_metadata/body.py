"""mla.draft-extend-metadata: the draft-extend graph builds its metadata once, not twice.

FlashAttention's graph begins with a kernel that writes lengths, their sums and the page table from
the batch's own tensors. Upstream's runner of several layers therefore skips the eager build; the
runner of one layer does not.
"""

from __future__ import annotations

from typing import Any

from ....model.patching import Patching
from ..references import FLASH, RUNNER

_STAGED = "sglang_perf_patches_in_graph"


def install(patching: Patching) -> None:
    """Give the backend the graph's metadata to hold, and leave its contents to the graph."""
    patching.anytime("stock builds the metadata anew before the next replay")
    ran = patching.ran
    flash = patching.get(FLASH)

    def judge(backend: Any) -> bool:
        """Whether the graph's kernel writes all that the eager build does."""
        return (
            type(backend) is flash
            # The eager build also clears the write targets of padding rows.
            and not backend.use_sliding_window_kv_pool
            and bool(backend.draft_extend_metadata_captured_in_graph())
        )

    def make(inner: Any) -> Any:
        def execute(self: Any, *args: Any, **kwargs: Any) -> Any:
            backend = self.draft_extend_attn_backend
            staged = getattr(self, _STAGED, None)
            if staged is None:
                staged = judge(backend)
                setattr(self, _STAGED, staged)
            if not staged:
                return inner(self, *args, **kwargs)
            ran.seen = True

            def stage(batch: Any) -> None:
                metadata = backend.draft_extend_metadata[batch.batch_size]
                metadata.max_seq_len_k = backend.max_context_len
                backend.forward_metadata = metadata
                backend.forward_metadata_spec_decode_expand = None

            # Set on the object, it hides the class's method during this replay only.
            backend.init_forward_metadata_out_graph = stage
            try:
                return inner(self, *args, **kwargs)
            finally:
                del backend.init_forward_metadata_out_graph

        return execute

    patching.override(f"{RUNNER}.execute", make)
