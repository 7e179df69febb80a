"""What the rigs of several sets make of a release's KV: allocators and prefix caches."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from sglang_perf_patches.verify.stock import MEMORY, NoneByDefault, called


def kv_allocator(page: int, tokens: int, **options: Any) -> Any:
    """The allocator of KV in pages of 1 token or more; without a ``kvcache`` none is behind it."""
    kinds = importlib.import_module(f"{MEMORY}.allocator")
    kind = kinds.PagedTokenToKVPoolAllocator if page > 1 else kinds.TokenToKVPoolAllocator
    plain = {"dtype": torch.float16, "device": "cpu", "kvcache": NoneByDefault()}
    return called(kind, size=tokens, page_size=page, need_sort=False, **plain | options)


def cache_params(rows: Any, allocator: Any, page: int, **options: Any) -> Any:
    """What a prefix cache is made of, with those options that the release knows."""
    return called(
        importlib.import_module(f"{MEMORY}.cache_init_params").CacheInitParams,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=allocator,
        page_size=page,
        **options,
    )


def unified_cache(params: Any, *components: str) -> Any:
    kinds = component_module().ComponentType
    params.tree_components = tuple(kinds[name] for name in components)
    return importlib.import_module(f"{MEMORY}.unified_radix_cache").UnifiedRadixCache(params)


def component_module() -> Any:
    """The package of the unified radix cache's components; a ModuleNotFoundError without it."""
    try:
        return importlib.import_module(f"{MEMORY}.unified_cache.components")
    except ModuleNotFoundError:
        return importlib.import_module(f"{MEMORY}.unified_cache_components")
