"""``mamba.flashinfer-plan``: the checkpoint plan of FlashInfer's GDN prefill, made on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .situations import refuse_platforms

if TYPE_CHECKING:
    from ...model.patching import Patching

_KERNELS = "sglang.srt.layers.attention.linear.kernels.gdn_flashinfer"


def install(patching: Patching) -> None:
    """Give stock's own planning CPU tensors made of the host's lists, then move its results."""
    refuse_platforms(patching)
    from . import host

    ran = patching.ran

    def plan(inner: Any) -> Any:
        def maybe_build_flashinfer_checkpoint_plan(
            forward_batch: Any, forward_metadata: Any, device: str
        ) -> None:
            # An idle device answers stock's queries at once.
            known = host.prefill(forward_batch) if host.is_busy(device) else None
            if known is None or known.track is None:
                inner(forward_batch, forward_metadata, device)
                return
            before = forward_metadata.track_ssm_h_src
            shadow = host.batch_on_cpu(forward_batch, known, known.track)
            inner(shadow, forward_metadata, "cpu")
            if forward_metadata.track_ssm_h_src is before:
                return  # nothing tracked needs a checkpoint
            ran.seen = True
            made = (forward_metadata.track_ssm_h_src, forward_metadata.state_checkpoint_cu_starts)
            moved = host.to_device(made, device)
            forward_metadata.track_ssm_h_src, forward_metadata.state_checkpoint_cu_starts = moved

        return maybe_build_flashinfer_checkpoint_plan

    patching.override(f"{_KERNELS}:maybe_build_flashinfer_checkpoint_plan", plan)
