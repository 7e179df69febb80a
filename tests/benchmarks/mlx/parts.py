"""Where the time of one prompt's prefill goes, with no patch, with each of them alone, with all.

It runs stock's runner with a model of random weights, one prompt at a time, built, launched and
read as in the overlap loop. A line of JSON for each length and selection has, in milliseconds:

- build: the host builds the graph,
- launch: the host evaluates it, which on CUDA launches its kernels,
- wait: until the token is read, with what the patches do meanwhile,
- finish: the write into the pool when the request leaves, until the device is idle.

Then a line with the device's time by kernel, for stock and for all patches, where PyTorch's
profiler sees it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sizes import MODELS

_ALONE = ("mlx.pool-write", "mlx.first-buffer", "mlx.last-row")
_PARTS = ("build", "launch", "wait", "finish")


def main() -> None:
    """Measure all selections in turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="0.6b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", default="256,2048")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only-all", action="store_true", help="not each patch alone")
    given = parser.parse_args()

    import mlx_lm  # noqa: F401 -- before the stand-in for PyTorch, which transformers would take

    from tests.proof import standalone

    standalone.lend()

    from switch import SET, Switch

    from sglang_perf_patches.verify import Missing
    from sglang_perf_patches.verify.mlx import models

    lives: dict[str, Callable[[], AbstractContextManager[Any]]] = {"none": nullcontext}
    for selection in (*(() if given.only_all else _ALONE), SET):
        try:
            switch = Switch(selection)
        except Missing as error:  # gated on this device
            print(json.dumps({"patches": selection, "left out": str(error)}), flush=True)
            continue
        switch.close()
        lives[selection] = switch.live
    sizes = dict(MODELS[given.model])
    kind, quantized = sizes.pop("kind", "qwen3"), sizes.pop("quantized", False)
    with models.model(kind, given.dtype, quantized=quantized, **sizes) as model:
        measured = []
        for tokens in map(int, given.tokens.split(",")):
            sides = {name: _Side(model, tokens, live) for name, live in lives.items()}
            measured.append((tokens, sides))
            for number in range(given.rounds + 2):
                order = list(sides.values())
                for side in order[number % len(order) :] + order[: number % len(order)]:
                    side.prefill()
            stock = sides["none"].totals()
            for name, side in sides.items():
                ratios = [own / other for own, other in zip(side.totals(), stock, strict=True)]
                told = {"tokens": tokens, "patches": name} | side.medians()
                quartiles = [round(each, 3) for each in statistics.quantiles(ratios, n=4)]
                print(json.dumps(told | {"until the token, to stock": quartiles}), flush=True)
        for tokens, sides in measured:  # last: a profiler slows what comes after it
            for name in ("none", SET):
                told = {"tokens": tokens, "patches": name} | _kernels(sides[name])
                print(json.dumps(told), flush=True)


class _Side:
    """A runner with a selection of patches, and the parts of its prefills, in seconds."""

    def __init__(
        self, made: Any, tokens: int, live: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        from sglang_perf_patches.verify.mlx import rig

        self._live, self._tokens, self._count = live, tokens, 0
        self.parts: list[tuple[float, ...]] = []
        with live():
            self._player = rig.Player(made, radix=True, slots=8 * tokens)
            self._player.evaluate_pool()
            self._player.keeps = False
            self._player.runner.prefill = self._taken

    def prefill(self) -> None:
        """Prefill a new prompt, and let its request leave."""
        import mlx.core as mx

        self._count += 1
        name = f"p{self._count}"
        with self._live():
            self._player.join(name, self._tokens)
            began = time.perf_counter()
            self._player.leave(name)
            mx.synchronize()
            self.parts[-1] += (time.perf_counter() - began,)

    def totals(self) -> list[float]:
        """Seconds of each prefill until its token was read; the first ones warm up."""
        return [sum(parts[:3]) for parts in self.parts[2:]]

    def medians(self) -> dict[str, float]:
        """The median of each part, in milliseconds."""
        each = zip(_PARTS, zip(*self.parts[2:], strict=True), strict=True)
        return {name: round(1e3 * statistics.median(of), 2) for name, of in each}

    def _taken(self, *arguments: Any) -> int:
        import mlx.core as mx

        runner = self._player.runner
        arrays_of = getattr(runner, "cache_state_arrays", _states)
        mx.synchronize()
        times = [time.perf_counter()]
        pending = runner.prefill_start(*arguments)
        times.append(time.perf_counter())
        mx.async_eval(pending.lazy_token, arrays_of([pending.cache]))
        times.append(time.perf_counter())
        token: int = runner.prefill_finalize(pending)
        times.append(time.perf_counter())
        self.parts.append(tuple(after - before for before, after in itertools.pairwise(times)))
        return token


def _states(caches: list[list[Any]]) -> list[Any]:
    return [cache.state for of_request in caches for cache in of_request]


def _kernels(side: _Side) -> dict[str, Any]:
    """The device's time in a prefill, in milliseconds, in all and by kernel."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        side.prefill()
        torch.cuda.synchronize()
    spent: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for event in profile.events():
        name = event.name[:90]
        spent[name] += event.time_range.elapsed_us()
        count[name] += 1
    most = {name: [round(us / 1e3, 3), count[name]] for name, us in spent.most_common(24)}
    total = round(sum(spent.values()) / 1e3, 2)
    return {"device, ms": total, "kernels": sum(count.values()), "by kernel, ms and times": most}


if __name__ == "__main__":
    main()
