"""What the jobs of several patches need; import it before stock's modules: see `RELEASE`."""

import gc
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import mlx.core as mx

import sglang_perf_patches
from sglang_perf_patches.compat import source
from sglang_perf_patches.live import engine
from sglang_perf_patches.verify import Different
from sglang_perf_patches.verify.mlx import rig
from tests.proof import checks, standalone

SEEDS = range(6)


def _installed_release() -> str:
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        import mlx_lm  # noqa: F401 -- before the stand-in for PyTorch, which transformers would take

        standalone.lend()
        return source.Tree(source.find_installed()).version


RELEASE = _installed_release()
"""The release that is here; if it is only its files, its runner is importable from now on."""


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
    with mock.patch.object(*change):
        try:
            compared = sum(check(_one_input) for check in checks(proof.PATCH).values())
            return "equal" if compared else "nothing was compared"
        except Different:
            return "different"
        except (RuntimeError, ValueError, AttributeError) as error:
            return f"raised {type(error).__name__}"


def _one_input(draw: Any, _: int | None = None) -> Any:
    return [draw(Random(0))]


def played(
    selection: str, made: Any, schedules: Any, counts: Any, patch: str, *, radix: bool = False
) -> dict[str, Any]:
    """What schedules give with a selection, and then a patch's counts and state."""
    sglang_perf_patches.activate(selection)
    counts.clear()
    player = rig.Player(made, radix=radix)
    results: dict[str, Any] = {"played": [asdict(player.play(each)) for each in schedules]}
    results |= {"counts": dict(counts), "state": asdict(state(patch))}
    del player  # its requests hold buffers of the patches
    gc.collect()
    sglang_perf_patches.deactivate()
    return results


def state(patch: str) -> Any:
    report = engine.report()
    assert report is not None
    return report.of(patch)


@contextmanager
def other_head(made: Any, rows: int) -> Iterator[None]:
    """Have the head give other values for fewer than so many rows, as by another kernel."""
    head = made.model.lm_head

    def changed(hidden: Any) -> Any:
        logits = head(hidden)
        return logits if hidden.shape[1] >= rows else logits * logits.dtype.size

    dict.__setitem__(made.model, "lm_head", changed)
    try:
        yield
    finally:
        dict.__setitem__(made.model, "lm_head", head)


def primitives(player: Any, batch: Sequence[str]) -> Counter[str]:
    """Play one decode step; how many nodes of each kind its graph has."""
    pending = player.runner.decode_batch_start(list(batch))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.dot")
        mx.export_to_dot(str(path), pending.lazy_tokens)
        lines = path.read_text().splitlines()
    labels = (line.partition('label ="')[2].partition('"')[0] for line in lines)
    mx.eval(pending.lazy_tokens)
    player.runner.decode_batch_finalize(pending)
    player.pending.clear()
    for who in batch:
        player._held[who] += 1
    return Counter(label for label in labels if label)
