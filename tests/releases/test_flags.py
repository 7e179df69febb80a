"""The flags of each release, as `bench server` and `report` read them from its source."""

from __future__ import annotations

import re

import pytest

from arguments import arguments
from sglang_perf_patches.bench_server import flags
from sglang_perf_patches.cli import downloads
from sglang_perf_patches.compat import source
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.feature import flag

PRIVATE = re.compile(r"-(key|keyfile|password|dir|folder|file|url|host|addr)$")
COMPUTED = 0.1
"""At most this part of a release's fields may have no flag."""


@pytest.mark.parametrize("release", releases.KNOWN)
def test_the_flags_of_a_release(release: str) -> None:
    known = flags.of(source.at(downloads.tree(release)))
    taken = {
        "number": "--tp --tp-size --mem-fraction-static --cuda-graph-bs --random-seed --port",
        "name": "--attention-backend --dtype --kv-cache-dtype --schedule-policy --quantization",
        "switch": "--trust-remote-code --enable-lora --disable-radix-cache --enable-metrics",
        "text": "--api-key --admin-api-key --host --model-path --served-model-name --lora-paths",
    }
    of_load = {
        "number": "--num-prompts --request-rate --max-concurrency --seed --random-input-len",
        "name": "--dataset-name --backend",
        "text": "--dataset-path --extra-request-body",
    }
    for kind, names in [*taken.items(), *of_load.items()]:
        assert {name: known.kind(name) for name in names.split()} == dict.fromkeys(
            names.split(), kind
        )
    for name, value in [
        *(("--attention-backend", "fa3"), ("--dtype", "half"), ("--kv-cache-dtype", "fp8_e5m2")),
        *(("--speculative-algorithm", "EAGLE"), ("--disaggregation-mode", "decode")),
        *(("--dataset-name", "random"), ("--schedule-policy", "lpm"), ("--tp", "8")),
    ]:
        assert known.may_show(name, value), (name, value)
    for name, kind in known.kinds.items():
        assert kind in ("text", "switch") or not PRIVATE.search(name), (name, kind)
    unknown = [name for name in arguments(release) if known.kind(flag(name)) is None]
    assert len(unknown) <= COMPUTED * len(arguments(release)), unknown
