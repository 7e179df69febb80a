"""In a server of `saturated.py`: its scheduler begins with a prefix cache full of leaves.

sglang loads it as a plugin (`saturated.py` writes its metadata). The leaves are inserted into the
scheduler's own tree over its own allocator's slots; their keys are of tokens that no prompt has.
"""

import inspect
import os
from array import array

import wrapt

LEAVES, TOKENS = (int(os.environ.get(f"FULL_{name}", "0")) for name in ("LEAVES", "TOKENS"))


def fill():
    """What sglang calls: wrap the loops of a scheduler that is imported later."""
    if LEAVES:
        wrapt.register_post_import_hook(_hook, "sglang.srt.managers.scheduler")


def _hook(module):
    for name in dir(module.Scheduler):
        if name.startswith("event_loop_"):
            wrapt.wrap_function_wrapper(module, f"Scheduler.{name}", _begun)


def _begun(wrapped, scheduler, args, kwargs):
    if not hasattr(scheduler, "_full_cache"):  # one event loop may call another one
        scheduler._full_cache = True
        _insert(scheduler.tree_cache, scheduler.token_to_kv_pool_allocator)
    return wrapped(*args, **kwargs)


def _insert(tree, allocator):
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    given = {"priority": 0, "prev_prefix_len": 0}
    given = {n: v for n, v in given.items() if n in inspect.signature(InsertParams).parameters}
    for number in range(LEAVES):
        slots = allocator.alloc(TOKENS)
        first = 1_000_000 + number * TOKENS
        key = RadixKey(array("q", range(first, first + TOKENS)), None)
        tree.insert(InsertParams(key=key, value=slots.long(), **given))
    print(f"full_cache: {type(tree).__name__}, {tree.evictable_size()} tokens", flush=True)
