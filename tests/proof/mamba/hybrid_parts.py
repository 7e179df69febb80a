"""What a hybrid model's server is made of: the release's pools, prefix caches and arguments."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from sglang_perf_patches.verify.mamba.rig import publish, request_pool
from sglang_perf_patches.verify.stock import MEMORY, NoneByDefault, called
from tests.proof.caches import cache_params, unified_cache
from tests.proof.requests import speculation

VOCABULARY = 1000


@dataclass(frozen=True)
class Shape:
    """The settings of a server.

    Attributes:
        tree: ``"radix"``, the cache for such models alone, or ``"unified"``.
        tracked: whether states are tracked in extra buffers, in pages of 64 tokens; otherwise pages
            have one token, and a state is cached where a prefill ends.
        slots: for states.
        tokens: of KV.
        chunk: most tokens of a prefill.
        overlap: whether a prefill is made before the results of the last one are there, as with
            overlap scheduling.
        lazy: whether a tracked request gets its second buffer only where it reaches a boundary.
        drafts: most tokens that a verify accepts; 0 without speculation.
        branches: drafts that branch from a token.
        transfer: rounds until a prefill server's KV was sent, while the request holds its slots; 0
            for a server that decodes.
    """

    tree: str
    tracked: bool
    slots: int
    tokens: int = 64 * 200
    rows: int = 8
    chunk: int = 256
    overlap: bool = True
    context: int = 4096
    lazy: bool = False
    drafts: int = 0
    branches: int = 1
    transfer: int = 0

    @property
    def strategy(self) -> str:
        """How states are tracked, as a user says it."""
        return f"extra_buffer{'_lazy' * self.lazy}" if self.tracked else "no_buffer"

    @property
    def more_arguments(self) -> dict[str, Any]:
        """What a server that drafts, or only prefills, is started with besides."""
        if self.transfer:
            return {"disaggregation_mode": "prefill"}
        if not self.drafts:
            return {}
        return {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": self.drafts - 1,
            "speculative_eagle_topk": self.branches,
            "speculative_num_draft_tokens": self.drafts,
        }

    @property
    def takes_results(self) -> bool:
        """Whether decodes end as the release ends them, with the states that they track."""
        return self.lazy or self.drafts > 0

    @property
    def page(self) -> int:
        return 64 if self.tracked else 1


def state_pool(shape: Shape) -> Any:
    """The pool of rows and states, with states of two floats."""
    arguments(shape)
    return bare_state_pool(shape)


def bare_state_pool(shape: Shape) -> Any:
    """The same, of whatever server the process has published."""
    widths = {
        "conv": [(2, 3)],
        "temporal": (1, 2, 2),
        "intermediate_size": 2,
        "conv_dim": 2,
        "ssm_state_size": 2,
        "num_heads": 1,
        "head_dim": 2,
        "state_size": 2,
        "conv_kernel": 4,
    }
    return request_pool(
        *(widths, [0], torch.float32, shape.rows, shape.slots),
        enable_mamba_extra_buffer=shape.tracked,
        max_context_len=shape.context + shape.page,
        enable_mamba_extra_buffer_lazy=shape.lazy,
    )


def prefix_params(shape: Shape, pool: Any, kv: Any) -> Any:
    options = {
        "disable": False,
        "enable_mamba_extra_buffer": shape.tracked,
        "enable_mamba_extra_buffer_lazy": shape.lazy,
        "is_eagle": shape.drafts > 0,
    }
    return cache_params(pool, kv, shape.page, **options)


def prefix_cache(shape: Shape, pool: Any, kv: Any) -> Any:
    params = prefix_params(shape, pool, kv)
    if shape.tree == "radix":
        return importlib.import_module(f"{MEMORY}.mamba_radix_cache").MambaRadixCache(params)
    return unified_cache(params, "FULL", "MAMBA")


def trees() -> tuple[str, ...]:
    """The prefix cache that the release makes for such models by default."""
    try:
        chooser = importlib.import_module(f"{MEMORY}.registry")
    except ModuleNotFoundError:
        chooser = importlib.import_module("sglang.srt.managers.scheduler")
    alone = " MambaRadixCache(params)" in inspect.getsource(chooser)
    return ("radix",) if alone else ("unified",)


_PUBLISHED: dict[str, Any] = {}


def arguments(shape: Shape) -> Any:
    """The release's own ServerArgs, published as a scheduler publishes it."""
    asked = (shape.strategy, shape.more_arguments)
    if _PUBLISHED.get("asked") != asked:
        _PUBLISHED.update(asked=asked, server_args=publish_shape(shape))
    return _PUBLISHED["server_args"]


def publish_shape(shape: Shape, **options: Any) -> Any:
    """The same anew, with further arguments."""
    return publish(
        shape.page,
        shape.strategy,
        chunked_prefill_size=shape.chunk,
        device="cpu",
        **options,
        **shape.more_arguments,
        **({"mamba_track_interval": 64} if shape.takes_results else {}),
    )


def schedule_batch(
    reqs: list[Any], pool: Any, kv: Any, tree: Any, vocabulary: int = VOCABULARY, **options: Any
) -> Any:
    return called(
        importlib.import_module("sglang.srt.managers.schedule_batch").ScheduleBatch.init_new,
        reqs=reqs,
        req_to_token_pool=pool,
        token_to_kv_pool_allocator=kv,
        tree_cache=tree,
        model_config=model_config(vocabulary),
        **{"spec_algorithm": speculation().NONE, **options},
    )


def model_config(vocabulary: int = VOCABULARY) -> Any:
    return NoneByDefault(
        vocab_size=vocabulary, hf_text_config=SimpleNamespace(), hf_config=SimpleNamespace()
    )
