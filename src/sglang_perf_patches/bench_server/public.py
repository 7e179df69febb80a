"""The names and versions that a page or a report may show; everything else in a text is left out.

Private words can't be listed: a model, a host or a token may look like anything. So only public
ones pass: this project's own names, those of sglang's code, and versions.
"""

from __future__ import annotations

import builtins
import re
from functools import cache

from .. import sets
from ..model import releases, setups
from ..model.feature import flag
from ..model.patch import by_id

OTHER = "other"
"""Shown instead of a text that is not public."""

_VERSION = re.compile(
    r"\d{1,4}\.\d{1,4}(\.\d{1,8})?((a|b|rc)\d{1,3})?(\.post\d{1,3})?(\.dev\d{1,8})?", re.ASCII
)
_LOCAL = re.compile(r"(?:cpu|cu\d{2,3}|rocm\d(?:\.\d){1,2})", re.ASCII)
_RANKS = r"(?:_(?:DP|PP|TP|EP|CP|ATTN|MOE)\d{1,4})*"
_ROLE = re.compile(
    rf"(?:launcher|detokenizer|tokenizer|data_parallel_controller|scheduler){_RANKS}"
    r"|(?:SpawnProcess|ForkProcess|Process)-\d{1,4}(?::\d{1,4})*",
    re.ASCII,
)
_OF_LIBRARIES = (
    *("OutOfMemoryError", "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"),
    *("AcceleratorError", "torch.AcceleratorError", "DistBackendError", "torch.DistBackendError"),
    *("ValidationError",),
)


def version(text: str) -> str:
    """A version; its local part only if it names a kind of build."""
    public, plus, local = text.partition("+")
    if not _VERSION.fullmatch(public):
        return OTHER
    return text if not plus or _LOCAL.fullmatch(local) else f"{public}+..."


def role(text: str) -> str:
    """A process's role if it is one of sglang's, else ``other``.

    >>> role("scheduler_TP0"), role("scheduler_for_acme.py")
    ('scheduler_TP0', 'other')
    """
    return text if _ROLE.fullmatch(text) else OTHER


def selection(text: str) -> str:
    """A selection, with only the names of sets and patches."""
    known = {*names(), *sets.NAMES, "all", "none", "off", "0"}
    items = [item.strip() for item in text.split(",")]
    return ",".join(item if item.removeprefix("-") in known else OTHER for item in items)


def named(text: str) -> list[str]:
    """The public names in a text, in order, each once.

    >>> named("RuntimeError: no model me/secret, says mlx.kv-arena (--tp-size)")
    ['RuntimeError', 'mlx.kv-arena', '--tp-size']
    """
    words = (word.strip(".:") for word in re.findall(r"[\w.:-]+", text))
    return [*dict.fromkeys(word for word in words if word in _known())]


@cache
def names() -> frozenset[str]:
    """The ids of the patches."""
    return frozenset(by_id(sets.load()))


@cache
def _known() -> frozenset[str]:
    """All public names: patches, releases, flags, definitions of patches, exception classes."""
    references = {name for patch in by_id(sets.load()).values() for name in patch.references()}
    modules = {name.partition(":")[0] for name in references}
    flags = {flag(name) for each in setups.FEATURES.all for name in each.arguments()}
    errors = {
        name
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    ours = {*names(), *releases.KNOWN, *references, *modules}
    return frozenset({*ours, *flags, *errors, *_OF_LIBRARIES})
