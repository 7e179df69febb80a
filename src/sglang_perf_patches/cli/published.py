"""What a report may show: the rule of each of its fields."""

from __future__ import annotations

import re
import shlex
from functools import partial
from typing import Any, get_args

from .. import sets
from ..bench import vocabulary
from ..bench.server import flags, noise
from ..bench.server.outcome import FIGURES
from ..bench.vocabulary import HIDDEN, OTHER
from ..judge.verdict import Word
from ..model.state import State
from .shape import by_name, each, fields, hidden, number, one_of, text, truth
from .shape import unless_missing as maybe

DISTRIBUTIONS = (
    *("sglang", "sglang-kernel", "sgl-kernel", "torch", "triton", "flashinfer-python"),
    *("flashinfer-cubin", "mlx", "mlx-lm", "transformers", "numpy", "wrapt", "prometheus-client"),
)
"""Whose versions a report has, beside Python's and ours."""

_STOPS = (
    r"the server (?:ended with \d{1,3}|was killed by signal \d{1,2}) while "
    r"(?:starting|answering|serving the load)",
    r"the server was not ready after \d{1,6} s",
    r"the load was not finished after \d{1,6} s",
    r"bench_serving ended with -?\d{1,3}",
    r"bench_serving wrote no result",
    r"\d{1,6} of \d{1,6} requests failed",
    r"no process of the server has a record of patches",
    r"no patch was live in it",
    r"it serves embeddings",
    r"/generate gave no tokens",
    r"/generate answered \d{3}",
    r"/generate did not answer",
)
"""How `bench server` says why it stopped; what follows comes of the server."""


def _stop(said: str) -> str:
    return next((found[0] for one in _STOPS if (found := re.match(one, said, re.ASCII))), OTHER)


def _words_of(command: str) -> str:
    try:
        return " ".join(flags.shown_flags(["", *shlex.split(command)]))
    except ValueError:
        return HIDDEN


def _release(said: str) -> str:
    """``0.5.23`` of ``0.5.23 at /path``."""
    return vocabulary.version(said.partition(" ")[0])


def _conclusion(said: str) -> str:
    # What stopped it is said at the end, in words of the server's; `stopped` has it too.
    return vocabulary.sentence(said.partition(" It stopped early")[0], with_numbers=True)


_sentence = text(vocabulary.sentence)
_counted = text(partial(vocabulary.sentence, with_numbers=True))
_version = text(vocabulary.version)
_names = one_of(vocabulary.names())
_FIGURE_NAMES = [figure.name for figure in FIGURES]
_SIDE = by_name(_FIGURE_NAMES, number)

_MACHINE = fields(
    {
        "system": text(vocabulary.system),
        "processor": text(vocabulary.processor),
        "cores": text(lambda said: said if re.fullmatch(r"\d{1,4}", said, re.ASCII) else OTHER),
        "python": _version,
        "sglang-perf-patches": _version,
        "measured": text(vocabulary.date),
        "gpu": text(vocabulary.gpus),
    }
)
_VERDICT = fields(
    {
        "id": _names,
        "selected": truth,
        "verdict": one_of(get_args(Word)),
        "reason": _sentence,
    }
)
_PROCESS = fields(
    {
        "pid": number,
        "server": number,
        "role": text(vocabulary.role),
        "sglang": _version,
        "selection": text(vocabulary.selection),
        "patches": each(
            fields(
                {
                    "id": _names,
                    "state": one_of(get_args(State)),
                    "reason": _sentence,
                    "ran": truth,
                }
            )
        ),
        "flags": lambda command: flags.shown_flags([str(word) for word in command]),
    }
)
_CHANGE = fields(
    {
        "stock": each(number),
        "patched": each(number),
        "ratio": number,
        "low": number,
        "high": number,
        "word": one_of(get_args(noise.Word)),
        "unit": one_of({figure.unit for figure in FIGURES}),
        "means": one_of({figure.means for figure in FIGURES}),
        "less_is_better": truth,
    }
)


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        return fields(dict.fromkeys(("stock", "patched", "ratio", "low", "high"), number))(value)
    if isinstance(value, str):
        return vocabulary.sentence(value, with_numbers=True)
    return value if value is None or isinstance(value, bool) else number(value)


_TABLE = fields(
    {
        "set": one_of(sets.NAMES),
        "title": _counted,
        "columns": each(_counted),
        "rows": each(each(_cell)),
        "notes": each(_counted),
    }
)
_LAST_BENCH = fields(
    {
        # of either
        "sglang": text(_release),
        "machine": _MACHINE,
        "command": text(_words_of),
        # of `bench`
        "tables": each(_TABLE),
        "ended": by_name(sets.NAMES, one_of(("equal", "skipped", "different", "failed"))),
        "reasons": by_name(sets.NAMES, _sentence),
        # of `bench server`
        "model": hidden,
        "repeat": hidden,
        "selection": text(vocabulary.selection),
        "load": text(_words_of),
        "turns": number,
        "changes": by_name(_FIGURE_NAMES, _CHANGE),
        "tokens": maybe(
            fields(
                {
                    "word": one_of(("equal", "different", "unsteady")),
                    "sentence": _counted,
                    "prompts": number,
                    "unsteady": number,
                    "different": each(number),
                }
            )
        ),
        "live": each(
            fields({"patch": _names, "role": text(vocabulary.role), "live": number, "ran": number})
        ),
        "failed": by_name(vocabulary.names(), _sentence),
        "lost": each(_names),
        "stopped": maybe(
            fields({"turn": number, "side": one_of(("stock", "patched")), "reason": text(_stop)})
        ),
        "boots": each(fields({"stock": _SIDE, "patched": _SIDE})),
        "conclusion": text(_conclusion),
        "rule": one_of((noise.RULE,), HIDDEN),
        "exit_code": number,
    }
)

report = fields(
    {
        "made": text(vocabulary.date),
        "versions": fields(
            {
                "sglang-perf-patches": _version,
                "python": _version,
                "system": text(vocabulary.system),
                **dict.fromkeys(DISTRIBUTIONS, _version),
            }
        ),
        "machine": _MACHINE,
        "selection": text(vocabulary.selection),
        "sglang": maybe(_version),
        "verdicts": each(_VERDICT),
        "processes": each(_PROCESS),
        "last_bench": maybe(_LAST_BENCH),
    }
)
"""A whole report, of which nothing comes out that isn't allowed."""
