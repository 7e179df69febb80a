"""Pairs of the swa patches, and all, in random episodes: order, all tokens, whole pools."""

import gc
from random import Random
from typing import Any
from unittest import mock

import sglang_perf_patches
from sglang_perf_patches.live import engine
from sglang_perf_patches.verify.comparing import require
from sglang_perf_patches.verify.stock import publish_server as publish
from tests.proof.swa import episodes
from tests.proof.swa.rig import DecodeWorker

DRAINED = 1500
"""Steps after which a worker that nothing comes to any more is idle."""


def together(selections: list[list[str]], seed: int, count: int, over: int = 0) -> dict[str, int]:
    """Play so many episodes with each selection live, no two the same; what was counted over all.

    A request holds `over` tokens beyond its own, as with speculation.
    """
    told = dict.fromkeys(("episodes", "served", "retracted", "cut"), 0)
    for number, patches in enumerate(selections):
        gc.collect()
        sglang_perf_patches.deactivate()
        publish()
        sglang_perf_patches.activate(",".join(patches))
        try:
            first = seed + number * count
            for each in range(first, first + count):
                try:
                    episode(Random(each), told, over)
                except AssertionError as error:
                    raise AssertionError(f"{patches}, seed {each}: {error}") from error
            for patch in patches:
                state = engine.report().of(patch).state
                require(state == "live", f"{patch} is {state}")
        finally:
            gc.collect()
            sglang_perf_patches.deactivate()
    return told


def episode(random: Random, told: dict[str, int], over: int = 0) -> None:
    """Play one to the end of all its requests.

    Raises:
        Different: one is admitted out of order, has another number of tokens than it asked for or
            never ends; or an invariant of `Witness` does not hold.
    """
    reqs: list[Any] = []
    cut: set[str] = set()
    submit, finish, abort = (
        getattr(DecodeWorker, name) for name in ("submit", "finish", "abort_in_transfer")
    )

    def submitted(self: Any, *given: Any) -> Any:
        reqs.append(submit(self, *given))
        return reqs[-1]

    def finished(self: Any, ended: Any, *more: Any) -> Any:
        cut.update(req.rid for req in ended if _tokens(req) < _wanted(req))
        return finish(self, ended, *more)

    def aborted(self: Any, index: int) -> Any:
        req = abort(self, index)
        cut.add(req.rid)
        return req

    with (
        mock.patch.object(DecodeWorker, "submit", submitted),
        mock.patch.object(DecodeWorker, "finish", finished),
        mock.patch.object(DecodeWorker, "abort_in_transfer", aborted),
    ):
        shape = _shape(random, over)
        played = episodes.Episode(shape, [random.randint(1, 200) for _ in range(4)])
        for _ in range(episodes.RULES):
            episodes.any_rule(played, random)
        worker = played.worker
        for _ in range(DRAINED):
            if worker.idle:
                break
            played.run(1)
    require(worker.idle, f"{shape}: requests wait for ever: {worker.counts}")
    numbers = [int(rid[1:]) for rid in worker.order]
    require(numbers == sorted(numbers), f"{shape}: admitted out of order: {numbers}")
    whole = 0
    for req in reqs:
        if req.rid in cut or req.rid in worker.rejected:
            continue
        require(_tokens(req) == _wanted(req), f"{shape}: {req.rid} has {_tokens(req)} tokens")
        whole += 1
    told["episodes"] += 1
    told["served"] += whole
    told["cut"] += len(cut)
    told["retracted"] += worker.counts.retractions
    played.end()


def _shape(random: Random, over: int) -> Any:
    """A worker that holds at least one request with its whole prompt: a smaller one may starve."""
    return episodes.shape(
        page=random.choice(episodes.PAGES),
        window=random.choice(episodes.WINDOWS),
        requests=random.randint(2, 6),
        growth=random.choice((460, 600)),
        full=random.randint(500, 1500),
        reserved=random.choice(episodes.RESERVES),
        transfer_steps=random.randint(0, 2),
        over_allocation=over,
        backup=random.choice(episodes.BACKUPS),
    )


def _tokens(req: Any) -> int:
    return len(req.output_ids)


def _wanted(req: Any) -> int:
    return int(req.sampling_params.max_new_tokens)
