"""Loads of a decode worker, and their results."""

from __future__ import annotations

from typing import Any

from sglang_perf_patches.verify.comparing import require
from tests.proof.swa.pool_invariants import Witness
from tests.proof.swa.rig import DecodeWorker
from tests.proof.swa.shape import Shape

PROMPTS = (5, 300, 64, 65, 1000, 1, 129, 500, 17)


def admitted(
    prompt: int, max_new_tokens: int = 128, requests: int = 64, running: int = 64, **sizes: Any
) -> dict[str, Any]:
    """How many equal requests an empty worker admits, what they hold, and who is refused."""
    context = prompt + max_new_tokens + 512
    worker = DecodeWorker(Shape(**sizes, context=context, running=running, in_transfer=running))
    for _ in range(requests):
        worker.submit(prompt, max_new_tokens)
    reqs = worker.admit()
    order = [req.rid for req in reqs]
    require(order == [f"r{n}" for n in range(len(reqs))], f"not in order: {order}")
    kept_tokens = [worker.allocated(req) - worker.evicted(req) for req in reqs]
    return {
        "admitted": len(reqs),
        "held": sorted(set(kept_tokens)),
        "refused": len(worker.rejected),
        "message": next(iter(worker.rejected.values()), ""),
    }


def history(window: int, page_size: int, prompts: tuple[int, ...] = PROMPTS) -> dict[str, Any]:
    """Order of admission, and tokens of every step, of a load with room for everything."""
    shape = Shape(
        window=window, page_size=page_size, swa_tokens=65536, running=4, in_transfer=3, reserved=16
    )
    worker = DecodeWorker(shape)
    for length in prompts:
        worker.submit(length, 6)
    tokens: list[int] = []
    while not worker.idle and len(tokens) < 300:
        worker.step()
        tokens.append(worker.counts.tokens)
    return {"order": worker.order, "tokens": tokens, "rejected": worker.rejected}


def pressed(**sizes: Any) -> dict[str, int]:
    """Retractions, and tokens, of a load that the sliding-window pool is too small for."""
    worker = DecodeWorker(Shape(**sizes, running=8, in_transfer=8, reserved=0))
    witness = Witness(worker)
    for number in range(12):
        worker.submit(20 + 13 * number, 40 + 11 * (number % 5))
    for step in range(700):
        if worker.idle:
            break
        worker.step()
        if step % 20 == 0:
            witness.check()
    require(worker.idle, "requests are left")
    require(not worker.rejected, f"refused: {worker.rejected}")
    witness.check_drained()
    return {
        "retractions": worker.counts.retractions,
        "tokens": worker.counts.tokens,
        "finished": worker.counts.finished,
    }


def alone_without_limit(
    page_size: int, over_allocation: int = 0, layout: str = "one"
) -> dict[str, Any]:
    """Requests without ``max_tokens``, one after the other to the end; a pool far below 4096."""
    shape = Shape(
        window=128,
        page_size=page_size,
        swa_tokens=1024,
        context=16384,
        running=2,
        in_transfer=1,
        reserved=16,
        over_allocation=over_allocation,
        layout=layout,
    )
    worker = DecodeWorker(shape)
    witness = Witness(worker)
    for _ in range(2):
        worker.submit(1000, 5000)
    worker.submit(100, 40)
    first = len(worker.admit())
    steps = 0
    while not worker.idle and steps < 800:
        worker.step()
        steps += 1
        if steps % 100 == 0:
            witness.check()
        # A client leaves after a while, to let the next one run.
        for req in [req for req in worker.batch.reqs if len(req.output_ids) > 300]:
            worker.finish([req])
    if worker.idle:
        witness.check_drained()
    return {
        "first": first,
        "finished": worker.counts.finished,
        "order": worker.order,
        "refused": len(worker.rejected),
        "retractions": worker.counts.retractions,
    }
