"""What the rigs of several sets make of a release: its arguments, pools and calls.

Releases differ in what a function takes, and in where a module stands. What is asked of them here
is asked by the newest name, and by the others where a release lacks that.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

MEMORY = "sglang.srt.mem_cache"

EXTRA_ARGUMENTS: dict[str, Any] = {}
"""Server arguments that checks get in addition to their own, to run them in another set-up."""


def called(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call with those keyword arguments that this release knows."""
    known = inspect.signature(function).parameters if kwargs else {}
    return function(*args, **{name: kwargs[name] for name in kwargs if name in known})


def takes(function: Any, name: str) -> bool:
    """Whether a function, or a class when it is made, has a parameter of this name."""
    return name in inspect.signature(function).parameters


def arguments(**settings: Any) -> Any:
    """The release's own ServerArgs, of the settings that it knows."""
    kind = importlib.import_module("sglang.srt.server_args").ServerArgs
    return called(kind, **{"model_path": "dummy", **settings})


def publish(server_args: Any) -> None:
    """Publish a server's arguments, as its scheduler does."""
    module = importlib.import_module("sglang.srt.server_args")
    module.set_global_server_args_for_scheduler(server_args)


@contextmanager
def replaced(modules: Iterable[Any], stand_ins: Mapping[str, Any]) -> Iterator[None]:
    """Put stand-ins into modules for a while, where a module has something of that name."""
    with ExitStack() as stack:
        for module in modules:
            for name in stand_ins.keys() & vars(module).keys():
                stack.enter_context(mock.patch.object(module, name, stand_ins[name]))
        yield


def publish_server(**settings: Any) -> Any:
    """Publish an ordinary server's arguments, with these and `EXTRA_ARGUMENTS`; return them."""
    server_args = arguments(**{"device": device()} | EXTRA_ARGUMENTS | settings)
    publish(server_args)
    return server_args


def device() -> str:
    """Where tensors of a check are: the GPU that this process sees, or the CPU."""
    cuda: Any = importlib.import_module("torch").cuda
    return "cuda" if cuda.is_available() else "cpu"


def window_pools(
    full: int, windowed: int, page: int, dtype: Any, *, heads: int, head_dim: int, device: str
) -> tuple[Any, Any]:
    """A pool of sliding windows with one layer of each kind, and its allocator.

    The full pool, whose layer is 1, has `full` tokens; the window pool, of layer 0, `windowed`. A
    `page` is in tokens.
    """
    module = importlib.import_module(f"{MEMORY}.swa_memory_pool")
    plain = {"enable_kvcache_transpose": False}
    sizes = {"size": full, "size_swa": windowed, "page_size": page}
    pool = module.SWAKVPool(
        **sizes,
        dtype=dtype,
        head_num=heads,
        head_dim=head_dim,
        swa_attention_layer_ids=[0],
        full_attention_layer_ids=[1],
        device=device,
        **(plain if takes(module.SWAKVPool, "enable_kvcache_transpose") else {}),
    )
    if not hasattr(module, "SWATokenToKVPoolAllocator"):
        module = importlib.import_module(f"{MEMORY}.allocator.swa")
    allocator = module.SWATokenToKVPoolAllocator(
        **sizes, dtype=dtype, device=device, kvcache=pool, need_sort=True
    )
    return pool, allocator


def state_ranks(**ranks: Any) -> None:
    """Say which ranks this process has, to releases that keep a register of them."""
    try:
        from sglang.srt.runtime_context import get_parallel
    except ImportError:
        return
    register = get_parallel()
    if hasattr(register, "override_permanently"):  # since 0.5.22 or so
        register.override_permanently(**ranks)


class NoneByDefault(SimpleNamespace):
    """A stand-in for what holds options: one that nobody set is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None
