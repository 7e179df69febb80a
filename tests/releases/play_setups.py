"""Play cases of ``verify`` in other set-ups: ``python play_setups.py FEATURE PATCH …``.

The release is on PYTHONPATH. A server with the feature on is published as the release publishes it,
so that whoever is gated there is, and the cases are played with its arguments. FEATURE ``-`` adds
none: what the cases have on by themselves. Prints one JSON line a patch: ``patch``; the features
that were ``on`` in what the case was played with; and ``compared``, or what else a case answers. A
release that has no such feature, or refuses it here, answers ``refused``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from sglang_perf_patches.proof import lent

lent.lend()

from read_setups import MODEL, fields  # noqa: E402

from sglang_perf_patches import proof  # noqa: E402
from sglang_perf_patches.live import published  # noqa: E402
from sglang_perf_patches.model.setups import FEATURES  # noqa: E402
from sglang_perf_patches.proof import given, worker  # noqa: E402


def main(feature: str, patches: list[str]) -> None:
    """Publish a server with the feature, and play."""
    os.environ["SGLANG_PERF_PATCHES"] = "none"
    found = next((each for each in FEATURES.all if each.name == feature), None)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        refused = _publish(folder, found) if found else ""
        if refused:
            print(json.dumps({"refused": refused}))
            return
        cases = [case for case in proof.all_cases() if case.patch in patches]
        for case in cases:
            given.MADE.clear()
            (line,) = worker.run([case], _one)
            on = {name for made in given.MADE for name in FEATURES.of(_Made(made))}
            print(json.dumps({**line, "on": sorted(on)}), flush=True)


def _publish(model: str, feature: Any) -> str:
    """Have the feature on in this process; why not, if the release has it not."""
    from sglang.srt import server_args

    known = fields(server_args.ServerArgs)
    some = {name: value for name, value in feature.example.items() if name in known}
    if not set(some) & set(feature.arguments()):
        return "the release has no such argument"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            made = server_args.ServerArgs(
                model_path=model, **{"device": "cpu", "attention_backend": "triton", **some}
            )
            server_args.set_global_server_args_for_scheduler(made)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"[:200]
    assert feature.name in FEATURES.of(published.published())
    given.MORE.update(some)
    return ""


class _Made(published.Published):
    """What a case was played with: arguments of the release's, or a stand-in's."""

    def unlike_default(self) -> dict[str, Any]:
        return {}


def _one(draw: Any, count: int | None = None) -> list[Any]:
    return [draw(Random(seed)) for seed in range(min(count or 2, 2))]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
