"""``mlx.hybrid-defaults``: ``--mamba-radix-cache-strategy auto`` becomes ``no_buffer`` on MLX.

Stock's ``auto`` is ``extra_buffer`` for models with gated delta nets. That needs kernels of other
platforms, and MLX's part of the radix cache refuses it.
"""

from __future__ import annotations

from typing import Any

from ....model.patching import Patching, replaces
from ..references import ENVIRONMENT
from . import SUPPORTS


def install(patching: Patching) -> None:
    """All releases."""
    patching.anytime("arguments are resolved once, before the server starts its processes")
    environment: Any = patching.module(ENVIRONMENT).envs

    @replaces(patching, SUPPORTS)
    def supports_mamba_cache_extra_buffer(view: Any, model: Any, *, inner: Any) -> bool:
        if not environment.SGLANG_USE_MLX.get():
            return bool(inner(view, model))
        patching.ran.seen = True
        return False
