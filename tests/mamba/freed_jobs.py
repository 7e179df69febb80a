"""What `on_release` plays of ``mamba.freed-rows``, on the release on PYTHONPATH."""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import importlib
from typing import Any
from unittest import mock

from tests.proof import stubs

stubs.lend()

from sglang_perf_patches.sets.mamba import freed_rows as body
from sglang_perf_patches.verify.comparing import live
from tests.proof.mamba import freed_rows

importlib.import_module("sglang.srt.managers.schedule_batch")  # the patch awaits it


def stock(algorithm: str) -> dict[str, Any]:
    """What comes of a reply that ends right before a boundary, and of one more of its prefix."""
    return {"says": freed_rows.played(algorithm)}


def both() -> dict[str, str]:
    """The same on stock and patched, with the speculation that waits here."""
    stock = freed_rows.played(freed_rows.algorithm())  # and the server is published
    with live(freed_rows.PATCH):
        return {"stock": stock, "patched": freed_rows.played(freed_rows.algorithm())}


def with_eagle(count: int = 2) -> dict[str, int]:
    return freed_rows.alike(range(count), "EAGLE")


def with_ngram(count: int = 2) -> dict[str, int]:
    return freed_rows.alike(range(count), "NGRAM")


def freed_with_eagle() -> list[int]:
    """How many rows have no request any more, in three episodes on stock."""
    return [freed_rows.episode(seed, "EAGLE")[2] for seed in range(3)]


def broken() -> str:
    """What comes of it if the patch names the slot that it had."""
    with mock.patch.object(body, "_DUMMY", 3), live(freed_rows.PATCH, ran=None):
        return freed_rows.played(freed_rows.algorithm())
