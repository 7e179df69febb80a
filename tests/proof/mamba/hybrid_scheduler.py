"""A hybrid model's scheduler: the release's own class, without what it starts."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

from sglang_perf_patches.verify.stock import NoneByDefault
from tests.proof import requests
from tests.proof.mamba.hybrid_parts import Shape, arguments, model_config


def scheduler(shape: Shape, pool: Any, kv: Any, tree: Any) -> Any:
    """The release's own ``Scheduler`` over these pools and this prefix cache."""
    module = importlib.import_module("sglang.srt.managers.scheduler")

    class Scheduler(module.Scheduler):  # type: ignore[misc, name-defined]
        """The release's, without what it starts; what it lacks is off."""

        def __init__(self, **own: Any) -> None:
            for name, value in own.items():
                setattr(self, name, value)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return None

        def get_num_allocatable_reqs(
            self, running: int, *_: Any, num_held_rows: int = 0, **__: Any
        ) -> int:
            most = int(self.max_running_requests) - running
            if self.disaggregation_mode.name == "PREFILL":  # those whose KV is sent hold rows
                most = min(most, self.req_to_token_pool.available_size() + num_held_rows)
            return most

    runner = NoneByDefault(attn_backend=SimpleNamespace(extend_attention_block_m=64))
    return Scheduler(
        server_args=arguments(shape),
        waiting_queue=[],
        grammar_manager=SimpleNamespace(has_waiting_grammars=lambda: False),
        policy=SimpleNamespace(
            calc_priority=lambda *_, **__: None, shortest_prefill_chunk_limit=lambda *_: None
        ),
        page_size=shape.page,
        tree_cache=tree,
        req_to_token_pool=pool,
        token_to_kv_pool_allocator=kv,
        new_token_ratio=0.5,
        new_token_ratio_tracker=SimpleNamespace(current=0.5),
        max_prefill_tokens=4 * shape.chunk,
        chunked_prefill_size=shape.chunk,
        priority_scheduling_preemption_threshold=0,
        max_prefill_bs=0,
        max_running_requests=shape.rows,
        tp_worker=NoneByDefault(model_runner=runner),
        model_config=model_config(),
        spec_algorithm=requests.speculation()["EAGLE" if shape.drafts else "NONE"],
        disaggregation_mode=importlib.import_module(
            "sglang.srt.disaggregation.utils"
        ).DisaggregationMode["PREFILL" if shape.transfer else "NULL"],
        load_inquirer=SimpleNamespace(_get_num_pending_tokens=lambda **_: 0),
        enable_overlap=False,
        device="cpu",
    )
