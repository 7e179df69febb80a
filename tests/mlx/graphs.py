"""The graph of a decode step."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx


def primitives(player: Any, batch: Sequence[str]) -> Counter[str]:
    """Play one decode step; the number of nodes of each primitive in its graph."""
    pending = player.runner.decode_batch_start(list(batch))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.dot")
        mx.export_to_dot(str(path), pending.lazy_tokens)
        lines = path.read_text().splitlines()
    labels = (line.partition('label ="')[2].partition('"')[0] for line in lines)
    mx.eval(pending.lazy_tokens)
    player.runner.decode_batch_finalize(pending)
    player.pending.clear()
    for who in batch:
        player._held[who] += 1
    return Counter(label for label in labels if label)
