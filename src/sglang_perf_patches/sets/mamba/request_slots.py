"""Where a request has its slots for states."""

from __future__ import annotations

from typing import Any


def holder(req: Any) -> Any:
    """What has a request's slots: from 0.5.19 on its KV record, before that the request."""
    record = getattr(req, "kv", None)
    return record if hasattr(record, "mamba_pool_idx") else req
