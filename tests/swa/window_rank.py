"""One rank of a tensor-parallel server: ``python window_rank.py RANK RANKS PORT SELECTION``.

Plays `window_loads.LONG` on the release on PYTHONPATH. The ranks meet at the port.
"""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import logging
import os
import sys

from tests.proof import stubs

os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"  # stock wants a NUMA node for each rank

stubs.lend()
for name in ("sglang", "sglang_perf_patches"):
    logging.getLogger(name).setLevel(logging.CRITICAL)

import sglang_perf_patches
from tests.proof.swa import window_loads
from tests.proof.swa.window_pool import PATCH
from tests.proof.swa.window_server import WindowServer, checksum, prepare, tell


def main(rank: int, ranks: int, port: int, selection: str) -> None:
    prepare()
    sglang_perf_patches.activate(selection)
    server = WindowServer(rank=rank, port=port, tp_size=ranks)
    window_loads.LONG.play(server)
    server.check_drained()
    runner = server.runner
    tell(
        PATCH,
        batches=server.batches,
        tokens={rid: server.tokens(rid) for rid in server.reqs},
        logits={rid: [*map(checksum, rows)] for rid, rows in server.logits.items()},
        heads=runner.model_config.get_num_kv_heads(ranks),
        pools=[runner.max_total_num_tokens, getattr(runner, "swa_max_total_num_tokens", None)],
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4])  # type: ignore[call-arg]
