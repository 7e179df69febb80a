"""Run the proofs of patches in other set-ups: ``python play_setups.py FEATURES PATCH …``.

The release is on PYTHONPATH. Before the first case, and before each of swa, a server with the
features on, whose names commas join, is published as the release publishes it, so that whoever is
gated there is; and the cases are played with its arguments. FEATURES ``-`` adds none: what the
cases have on by themselves. Prints one JSON line a patch: ``patch``; the features that were ``on``
in what the case was played with; and ``compared``, or what else a case answers. Features that the
release has not are left out; where it refuses the server there is one line, ``refused`` and why.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.proof import stubs

stubs.lend()

from read_setups import MODEL, fields, publish  # noqa: E402

from feature_examples import example  # noqa: E402
from sglang_perf_patches import gpu  # noqa: E402
from sglang_perf_patches.live import published  # noqa: E402
from sglang_perf_patches.model.feature import Feature  # noqa: E402
from sglang_perf_patches.model.setups import FEATURES  # noqa: E402
from sglang_perf_patches.verify import stock  # noqa: E402
from sglang_perf_patches.verify.mla import rig  # noqa: E402
from tests import proof  # noqa: E402

FEATURES.uses = ()  # the server that is published here is none that the patches are for

OWN = ("pages", "draft-trees", "tracked-states", "frozen-kv-mtp")
"""What cases have on by themselves: several sizes, a model that has it, or its worker."""
MADE: list[Any] = []
"""The server arguments that the cases of a patch made."""
STATES = ("other-tracking",)
"""What a server of this model refuses: what cases publish has it, with a model of their own."""


def main(names: str, patches: Sequence[str]) -> None:
    for line in played(names, patches):
        print(json.dumps(line), flush=True)


def played(names: str, patches: Sequence[str]) -> Iterator[dict[str, Any]]:
    os.environ["SGLANG_PERF_PATCHES"] = "none"
    chosen = [each for each in FEATURES.all if each.name in names.split(",")]
    if any(each.name == "other-gpu" for each in chosen):
        _lend_gpu()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        for patch in patches:
            # A decode worker of swa publishes its own server. Rigs of other sets serve all cases of
            # a process, and read what they have published themselves.
            is_due = patch == patches[0] or patch.startswith("swa.")
            refused = _publish(folder, chosen) if chosen and is_due else ""
            if refused:
                yield {"refused": refused}
                return
            MADE.clear()
            (line,) = proof.run([patch], _few)
            # A case that makes none reads those of the process.
            servers = [_Made(each) for each in MADE] or [published.published()]
            yield {**line, "on": sorted({name for each in servers for name in FEATURES.of(each)})}


def _lend_gpu() -> None:
    """Have what gates take this GPU for another one than a Hopper; the cases compute on the CPU."""
    gpu.capability = lambda: "10.0"
    read = published.Published.read

    def of_a_gpu(self: published.Published, name: str) -> Any:
        return "cuda" if name == "device" else read(self, name)

    published.Published.read = of_a_gpu  # type: ignore[method-assign]


def _noting(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(**settings: Any) -> Any:
        MADE.append(make(**settings))
        return MADE[-1]

    return made


# Before the modules of cases are imported, which take these by their names.
stock.arguments = _noting(stock.arguments)
rig.server_args = _noting(rig.server_args)


def _publish(model: str, chosen: list[Feature]) -> str:
    """Have features on in this process; why not, if the release refuses them."""
    known = fields()
    chosen = [
        each
        for each in chosen
        if each.name not in OWN and known & set(each.arguments()) & set(example(each))
    ]
    asked = {
        name: value for each in chosen for name, value in example(each).items() if name in known
    }
    apart = {name for each in chosen if each.name in STATES for name in example(each)}
    some = {name: value for name, value in asked.items() if name not in apart}
    if refused := publish(model, **{"attention_backend": "triton", **some}):
        return refused
    off = {each.name for each in chosen if each.name not in STATES} - FEATURES.of(
        published.published()
    ).keys()
    assert not off, off
    stock.EXTRA_ARGUMENTS.update(asked)
    return ""


class _Made(published.Published):
    """What a case was played with: arguments of the release's, or a stand-in's."""

    def unlike_default(self) -> dict[str, Any]:
        return {}


def _few(draw: Any, count: int | None = None) -> list[Any]:
    return [draw(Random(seed)) for seed in range(min(count or 2, 2))]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
