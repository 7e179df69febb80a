"""What ``doctor --model`` must know about a server."""

from __future__ import annotations

from dataclasses import dataclass

from ...model.errors import OperatorError
from ...model.feature import flag


@dataclass(frozen=True, kw_only=True)
class Server:
    """The options of ``doctor --model``, by the names of their flags; ``--help`` explains them.

    None: not given, and there is no default. The cache is bfloat16 by default.
    """

    kv_gib: float
    max_running_requests: int | None = None
    context: int | None = None
    hicache_size: float = 0
    hicache_ratio: float = 0
    page_size: int = 1
    tp_size: int = 1
    chunked_prefill_size: int = 8192
    kv_cache_bytes: int = 2
    disable_radix_cache: bool = False

    @property
    def available(self) -> int:
        """`kv_gib` in bytes."""
        return int(self.kv_gib * 2**30)

    def needed(self, option: str, kind: str) -> int:
        """The value of an option without which a model of this kind has no answer.

        Raises:
            OperatorError: it is not given.
        """
        value: int | None = getattr(self, option)
        if value is None:
            raise OperatorError(f"{kind}: {flag(option)} is missing, its memory depends on it")
        return value
