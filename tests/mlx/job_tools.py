"""What the jobs of several patches need."""

from __future__ import annotations

from importlib import metadata
from random import Random
from typing import Any
from unittest import mock

SEEDS = range(6)


def counts_each_layer(self: Any) -> None:
    """Advance each layer at once: a step that fails leaves some of them longer."""
    for writer in self._writers:
        layers = [layer for layer in writer.arena.layers if layer is not None]
        for cache in layers[len(layers) - self._left].caches:
            cache.offset += 1
    self._left -= 1
    if not self._left:
        for writer in self._writers:
            writer.arena.lengths = [length + 1 for length in writer.lengths]


def verdict_of(proof: Any, change: tuple[Any, str, Any]) -> str:
    """What a patch's checks say with one attribute changed: equal, different, or an error."""
    from sglang_perf_patches.verify import Different
    from tests.proof import checks

    def few(draw: Any, count: int | None = None) -> Any:
        return [draw(Random(0))]

    with mock.patch.object(*change):
        try:
            compared = sum(check(few) for check in checks(proof.PATCH).values())
            return "equal" if compared else "nothing was compared"
        except Different:
            return "different"
        except (RuntimeError, ValueError, AttributeError) as error:
            return f"raised {type(error).__name__}"


def installed_release() -> str:
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        import mlx_lm  # noqa: F401 -- before the stand-in for PyTorch, which transformers would take

        from sglang_perf_patches.compat import source
        from tests.proof import standalone

        standalone.lend()
        return source.Tree(source.find_installed()).version


def state(patch: str) -> Any:
    from sglang_perf_patches.live import engine

    report = engine.report()
    assert report is not None
    return report.of(patch)
