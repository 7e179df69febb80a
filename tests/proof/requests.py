"""The release's own requests, as the rigs of several sets make and release them."""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Sequence
from typing import Any

from sglang_perf_patches.verify.stock import MEMORY, called


def request(rid: str, ids: Sequence[int], **kwargs: Any) -> Any:
    """The release's own ``Req`` of a prompt, with those options that it knows.

    ``sampling`` has those of its ``SamplingParams``.
    """
    params = importlib.import_module("sglang.srt.sampling.sampling_params").SamplingParams
    return called(
        importlib.import_module("sglang.srt.managers.schedule_batch").Req,
        rid=rid,
        origin_input_text="",
        origin_input_ids=token_ids(ids),
        sampling_params=params(**kwargs.pop("sampling")),
        **kwargs,
    )


def token_ids(ids: Sequence[int]) -> Any:
    """Token ids as the release's ``Req`` joins them with its output ids: since 0.5.13 an array."""
    batches = importlib.import_module("sglang.srt.managers.schedule_batch")
    return array("q", ids) if hasattr(batches, "array") else list(ids)


def release(req: Any, tree: Any, *, keep: bool) -> None:
    """Release a request's KV, and cache it in the tree if it is to be kept."""
    function = importlib.import_module(f"{MEMORY}.common").release_kv_cache
    called(function, req, tree, checkpoint=keep, is_insert=keep)


def is_whole(req: Any) -> bool:
    """Whether a request has all the tokens that it asked for."""
    return bool(len(req.output_ids) >= req.sampling_params.max_new_tokens)


def speculation() -> Any:
    return importlib.import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
