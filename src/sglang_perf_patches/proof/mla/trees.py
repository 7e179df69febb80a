"""Token trees of a verify: a kernel in place of the CUDA one, and the cells that it writes."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from sglang.srt.speculative import eagle_utils

Request = tuple[int, tuple[int, ...]]
"""A prefix length, and the parent of each drafted token: 0 the last one of the prefix."""


def some_requests(random: Random, most: int, draft: int) -> list[Request]:
    """One to `most` requests with trees of `draft` tokens."""
    return [
        (random.randint(1, 40), tuple(random.randint(0, node) for node in range(draft - 1)))
        for _ in range(random.randint(1, most))
    ]


def kernel(
    _parents: Any,
    nodes: torch.Tensor,
    seq_lens: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    *rest: Any,
) -> None:
    """In place of the CUDA kernel: writes the tree cells, all of them, by address.

    `nodes` holds here the parent of each drafted token, (requests, draft - 1).
    """
    draft, mode = rest[-2], rest[-1]
    full = mode == eagle_utils.TreeMaskMode.FULL_MASK
    cells = torch.empty(0, dtype=mask.dtype).set_(mask.untyped_storage())
    at = mask.storage_offset()
    for request, length in enumerate(seq_lens.tolist()):
        prefix = length if full else 0
        for token in range(draft):
            row = torch.zeros(draft, dtype=mask.dtype)
            node = token
            while node:
                row[node] = 1
                node = int(nodes[request, node - 1])
            row[0] = 1
            cells[at + prefix : at + prefix + draft] = row
            at += prefix + draft
        positions[request * draft : (request + 1) * draft] = length


def lend() -> None:
    """Have the release's tree builder launch `kernel`."""
    for name in ("sgl_build_tree_kernel_efficient", "build_tree_kernel_efficient_func"):
        setattr(eagle_utils, name, kernel)


def cells(mask: torch.Tensor, lengths: list[int], draft: int) -> list[torch.Tensor]:
    """The draft x draft cells of each request in a mask that has prefix cells too."""
    found, at = [], 0
    for length in lengths:
        rows = mask[at : at + draft * (length + draft)].reshape(draft, length + draft)
        found.append(rows[:, length:].to(torch.uint8).clone())
        at += rows.numel()
    return found


def build(
    lengths: torch.Tensor,
    nodes: torch.Tensor,
    draft: int,
    mask: torch.Tensor | None,
    positions: torch.Tensor | None,
    *,
    total: int | None = None,
) -> Any:
    """Build trees by the release's own builder.

    Args:
        lengths: prefix lengths, (requests,).
        nodes: parents, (requests, draft - 1).
        draft: tokens of a tree.
        mask: the backend's buffer, or None.
        positions: likewise.
        total: the sum of the lengths as the worker knows it; None: exactly.

    Returns:
        the builder's: mask, positions, the three tables to retrieve by, and tokens.
    """
    count = lengths.numel()
    return eagle_utils.build_tree_kernel_efficient(
        torch.arange(count, device=lengths.device),
        [],
        nodes.reshape(count, draft - 1),
        torch.zeros((count, draft - 1), dtype=torch.int64, device=lengths.device),
        lengths,
        int(lengths.sum()) if total is None else total,
        2,
        3,
        draft,
        eagle_utils.TreeMaskMode.FULL_MASK,
        mask,
        positions,
    )


def parents(requests: list[Request], draft: int) -> torch.Tensor:
    """The requests' nodes as `build` takes them."""
    nodes = torch.tensor([parents for _, parents in requests], dtype=torch.int64)
    return nodes.reshape(len(requests), draft - 1)
