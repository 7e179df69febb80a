"""What `on_release` runs of the swa patches, next to the functions of `_MODULES`."""

import contextlib
import gc
import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any
from unittest import mock

from tests.proof import stubs

stubs.lend()
for name in ("sglang", "sglang_perf_patches"):
    logging.getLogger(name).setLevel(logging.CRITICAL)

import checks  # noqa: E402
import metadata_checks  # noqa: E402
import pool_checks  # noqa: E402
import sglang.srt.disaggregation.decode  # noqa: F401, E402 - the patches go live on what is there
import slot_checks  # noqa: E402
import together_checks  # noqa: E402
from machine import play  # noqa: E402, F401 - a job

import sglang_perf_patches  # noqa: E402
from prove import drawn  # noqa: E402
from sglang_perf_patches.live import engine  # noqa: E402
from sglang_perf_patches.verify.stock import publish_server as publish  # noqa: E402
from tests import proof  # noqa: E402
from tests.proof.swa import cases  # noqa: E402

_RUNNER = "sglang.srt.model_executor.runner"
"""Where newer releases have the graphs that `graph_checks` replays."""
_MODULES = (
    checks,
    metadata_checks,
    pool_checks,
    slot_checks,
    together_checks,
    cases,
    *([importlib.import_module("graph_checks")] if find_spec(_RUNNER) else ()),
)


def __getattr__(name: str) -> Callable[..., Any]:
    found = {id(job): job for module in _MODULES if (job := getattr(module, name, None))}
    if not found:
        raise AttributeError(name)
    (job,) = found.values()  # two jobs of one name would hide each other
    return job


def select(text: str) -> None:
    """Take off what is on, and put a selection on, in a plain server."""
    _have_stock()
    publish()
    sglang_perf_patches.activate(text)


def _have_stock() -> None:
    """Take off what is on; the requests of earlier jobs are waited for, and gone."""
    gc.collect()
    sglang_perf_patches.deactivate()
    assert engine.report() is None, engine.report()


def states() -> dict[str, list[Any]]:
    engine.look_again()
    report = engine.report()
    patches = report.patches if report else ()
    return {p.id: [p.state, p.ran] for p in patches if p.id.startswith("swa.")}


def prove(patches: list[str]) -> list[dict[str, Any]]:
    _have_stock()
    return list(proof.run(patches, drawn))


def broken(names: list[str], selection: str, job: str, arguments: dict[str, Any]) -> str | None:
    """What a job says while these functions of the patches do nothing; None if it passes."""
    try:
        with _out_of_work(names):
            select(selection)
            getattr(sys.modules[__name__], job)(**arguments)
    except AssertionError as error:
        return str(error) or "an assertion"
    finally:
        select("none")
    return None


@contextlib.contextmanager
def _out_of_work(names: list[str]) -> Iterator[None]:
    from sglang_perf_patches.sets.swa import idle_admission, page_size_1, window
    from sglang_perf_patches.sets.swa.tail_prealloc import body as tail_prealloc

    modules = (idle_admission, page_size_1, window, tail_prealloc)
    with contextlib.ExitStack() as stack:
        for name in names:
            holders = [module for module in modules if hasattr(module, name)]
            if not holders:
                raise ValueError(f"there is no {name} to break")
            for module in holders:
                stack.enter_context(mock.patch.object(module, name, return_value=None))
        yield
