"""Whether all ranks of a server may replay the same graph of a bucket."""

from __future__ import annotations

from typing import Any


def all_fit(tables: Any, forward_batch: Any) -> bool:
    """Whether the batch fits the tables and, with DP attention, so does that of each other rank.

    All ranks must replay the same one of a bucket's graphs: a captured all-reduce reads the memory
    of the other ranks at the addresses of that graph. The scheduler has gathered each rank's tokens
    and its rows of logits, of which a request has at least one.
    """
    tokens = getattr(forward_batch, "original_global_num_tokens_cpu", None)
    if tokens is None:
        lens = forward_batch.extend_seq_lens_cpu
        return bool(tables.holds(sum(lens), len(lens)))
    return all(map(tables.holds, tokens, forward_batch.global_num_tokens_for_logprob_cpu))
