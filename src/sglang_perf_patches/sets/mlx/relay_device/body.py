"""``mlx.relay-device``: the relay between two steps is made on the device of the request pool.

Stock makes it on the server's device, which is ``mps`` on a Mac. Under MLX the indices are those of
the request pool, which is on the CPU, and the tokens come from MLX by way of the CPU.
"""

from __future__ import annotations

from typing import Any

from ....model.patching import Patching, replaces
from ..references import ENVIRONMENT
from . import MAKES


def install(patching: Patching) -> None:
    """All releases."""
    patching.anytime("a scheduler makes its relay once")
    environment: Any = patching.module(ENVIRONMENT).envs

    @replaces(patching, MAKES)
    def init(self: Any, device: Any, algorithm: Any, pool: Any, *needs: Any, inner: Any) -> None:
        if environment.SGLANG_USE_MLX.get():
            device = pool.req_to_token.device
            patching.ran.seen = True
        inner(self, device, algorithm, pool, *needs)
