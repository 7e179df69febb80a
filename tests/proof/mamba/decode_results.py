"""What a decode or a verify of the `HybridServer` leads to, as the release's own scheduler has it.

The release's own are what a decode allocates, which slots it tracks into, and what is done with its
result. Drawn stands how many tokens a verify accepts.
"""

from __future__ import annotations

import dataclasses
import importlib
import zlib
from dataclasses import dataclass
from typing import Any

from sglang_perf_patches.verify.stock import NoneByDefault

_MANAGERS = "sglang.srt.managers"


@dataclass
class Launched:
    """A decode or verify that runs, while the results before it are taken.

    Attributes:
        into: of each request, the slot that tracks its state, if it tracks one in this step.
        row: request → its place in the batch.
    """

    batch: Any
    into: list[int]
    row: dict[str, int]


def launched(batch: Any, drafts: int) -> Launched:
    batch.prepare_for_decode()
    tracks = batch.req_to_token_pool.enable_mamba_extra_buffer
    if drafts and tracks:
        utils = importlib.import_module("sglang.srt.speculative.spec_utils")
        utils.prepare_mamba_track_for_verify(batch)
    into = batch.mamba_track_indices.tolist() if tracks else [0] * len(batch.reqs)
    return Launched(batch.copy(), into, {req.rid: row for row, req in enumerate(batch.reqs)})


def accepted(req: Any, drafts: int) -> int:
    """How many tokens a step yields: drawn from the request, so the same on both sides."""
    if not drafts:
        return 1
    return zlib.crc32(f"{req.rid} {len(req.output_ids)}".encode()) % drafts + 1


class Results:
    """What takes results: the release's own, without what it counts, streams and offloads."""

    def __init__(self, model_config: Any, tree: Any, pool: Any) -> None:
        module = importlib.import_module(f"{_MANAGERS}.scheduler_components.batch_result_processor")
        kind = module.SchedulerBatchResultProcessor
        self._ended = importlib.import_module(f"{_MANAGERS}.schedule_batch").FINISH_LENGTH

        nothing = dict.fromkeys(each.name for each in dataclasses.fields(kind))
        own = {"model_config": model_config, "tree_cache": tree, "req_to_token_pool": pool}
        read = {"server_args": NoneByDefault()} if "server_args" in nothing else {}
        self._own = kind(**{**nothing, **own, **read, "enable_overlap": False})

    def take(self, req: Any, launched: Launched, count: int, drafts: int) -> None:
        """Take a request's tokens of a step; it is released if it ends."""
        if drafts:
            holder = req if hasattr(req, "kv_committed_len") else req.kv
            holder.kv_committed_len += count
        req.output_ids.extend([5] * count)
        most = req.sampling_params.max_new_tokens
        if len(req.output_ids) >= most:
            req.finished_reason, req.finished_len = self._ended(length=most), most
        row = launched.row[req.rid]
        counts = [0] * len(launched.row)
        counts[row] = count - 1
        result = NoneByDefault(
            num_correct_drafts_per_req_cpu=counts if drafts else None,
            num_non_draft_tokens_per_req=1,
        )
        self._own._handle_finish_state_updated_req(req, launched.batch, result, row, None)
