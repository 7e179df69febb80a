"""Stock and patched sglang on MLX in one process, switched by turns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from sglang_perf_patches.compat import source
from sglang_perf_patches.live import wrappers
from sglang_perf_patches.telemetry import recorder
from sglang_perf_patches.verify import Missing
from sglang_perf_patches.verify.mlx.models import RUNNER

SET = "mlx"
"""The set, which stands for all its patches that are on by default."""


class Switch:
    """Switches the patched code on and off, always the same objects.

    A second activation would not work: it would not recognize caches in an arena of the first one,
    and stock would serve their batch.

    Attributes:
        names: the patches that went live.
    """

    def __init__(self, selection: str = SET) -> None:
        """`selection` names patches, with commas between, or the set."""
        import sglang_perf_patches

        import_module(RUNNER)
        named = selection.split(",")
        verdicts = sglang_perf_patches.verdicts(source.find_installed())
        applying = [
            (one.patch.id, one.variant)
            for one in verdicts
            if one.variant is not None
            and (one.patch.id in named or (one.patch.set in named and one.patch.is_default))
        ]
        targets = {target: None for _, variant in applying for target in variant.targets}
        owners = [wrappers.owner_of(reference) for reference in targets]
        stock = [self._held(*owner) for owner in owners]
        report = sglang_perf_patches.activate(selection)
        recorder.drop()  # it checks the live code, and would report a turn of stock's as a conflict
        self.names = [id for id, _ in applying if report.of(id).state == "live"]
        if not self.names:
            raise Missing(f"no patch of {selection} went live")
        self._stock = list(zip(owners, stock, strict=True))
        self._live = [(owner, self._held(*owner)) for owner in owners]

    @contextmanager
    def live(self) -> Iterator[None]:
        """Run the patched code inside the context."""
        self._put(self._live)
        try:
            yield
        finally:
            self._put(self._stock)

    @contextmanager
    def stock(self) -> Iterator[None]:
        """Run stock's code, as outside any context."""
        self._put(self._stock)
        yield

    def close(self) -> None:
        """Put stock's own objects back."""
        import sglang_perf_patches

        self._put(self._live)
        gc.collect()  # what holds a request's buffers would keep a patch from coming off
        sglang_perf_patches.deactivate()

    @staticmethod
    def _held(owner: Any, name: str) -> tuple[Any, Any]:
        """An attribute and its code, if a function: a patch replaces a module function's code."""
        value = wrappers.raw(owner, name)
        return value, getattr(value, "__code__", None)

    @staticmethod
    def _put(held: list[tuple[tuple[Any, str], tuple[Any, Any]]]) -> None:
        for (owner, name), (value, code) in held:
            setattr(owner, name, value)
            if code is not None:
                value.__code__ = code
