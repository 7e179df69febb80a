"""Commands, model names and server output, reduced to what a page or a report may show.

Private words can't be recognized, so only known ones are shown: sglang's own flags and values,
numbers if a flag takes one, the last name of a model's path, and names of exceptions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from . import flags, public

HIDDEN = "..."
OF_SHELLS = frozenset({"-c", "-lc", "-ic", "-ec"})
"""The options of a shell that take a script."""

VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
"""An assignment of an environment variable, as ``env`` and shells take it."""

_KINDS: dict[str, str] = {
    **dict.fromkeys(("--model", "--model-path", "--tokenizer-path", "--tokenizer"), "model"),
    **dict.fromkeys(("--speculative-draft-model-path", "--speculative-draft-model"), "model"),
    **dict.fromkeys((*OF_SHELLS, "--a", "--b", "--c", "--d"), "words"),
    **dict.fromkeys(("--port", "--turns", "--boot-timeout", "--load-timeout"), "number"),
    **dict.fromkeys(("--keep", "--url"), "text"),
    **dict.fromkeys(("-m", "--", "--json"), "switch"),
}
"""What an option takes that is not the server's: as `flags.Kind`, a model's path, or words."""

_PROGRAMS = re.compile(
    r"python(?:3(?:\.\d{1,2})?)?|sglang(?:-perf-patches|(?:\.[a-z_]{1,20}){0,3})|sglang|serve|env"
    r"|sh|bash|exec|bench|server|run|curl|nohup|numactl|launch_server\.py|[|;&]{1,2}",
    re.ASCII,
)
_NAME = re.compile(
    r"(?:SGLANG|SGL|CUDA|NCCL|NVSHMEM|TORCH|PYTORCH|TRITON|FLASHINFER|MLX|OMP|MKL|HIP|ROCR|UCX|GLOO"
    r"|TOKENIZERS|NUMEXPR|HF|HUGGING_FACE_HUB|LD)_[A-Z][A-Z0-9_]{0,60}|PYTHON[A-Z]{1,20}",
    re.ASCII,
)
_NOT_A_NUMBER = re.compile(r"KEY|TOKEN(?!S|IZ)|SECRET|PASS|PWD|AUTH|PIN|CRED|COOKIE")
_WORDS = {"true", "false", "True", "False", "yes", "no", "on", "off", "auto"}
_MODEL = re.compile(r"[A-Za-z][A-Za-z0-9]{0,19}(?:[-_.][A-Za-z0-9]{1,20}){0,12}", re.ASCII)
_KINDS_OF_TOKENS = re.compile(r"hf_|sk-|gh[pos]_|github_pat_|glpat-|xox|A[KS]IA|eyJ")


def shown(words: Sequence[str], *, with_model: bool = True) -> str:
    """A command with ``...`` in place of every word that is not known to be public.

    `with_model` tells whether to show the last name of a model's path.

    >>> shown(["env", "HF_TOKEN=hf_1", "serve", "--port", "1", "--pw", "k"])
    'env HF_TOKEN=... serve --port 1 ...'
    """
    kept: list[str] = []
    for word in _each(words, with_model):
        if word != HIDDEN or kept[-1:] != [HIDDEN]:
            kept.append(word)
    return shlex.join(kept)


def model_name(path: str) -> str:
    """The last name of a model's path or id; ``...`` for an address or a token.

    >>> model_name("/home/me/models/Qwen3-8B"), model_name("https://me:key@hub/m")
    ('Qwen3-8B', '...')
    """
    name = path.rstrip("/").rpartition("/")[2]
    is_name = _MODEL.fullmatch(name) and not _KINDS_OF_TOKENS.match(name)
    return name if not path or (is_name and not re.search(r"://|[@?\s]", path)) else HIDDEN


def said(text: str) -> str:
    """The public names in the last line of a server's or client's output: ``RuntimeError``."""
    return ", ".join(public.named(text)) or HIDDEN


def _each(words: Sequence[str], with_model: bool) -> Iterator[str]:
    """Each word, or ``...`` in its place."""
    option = ""
    for word in words:
        if re.match(r"-(?!\d)\S*$", word):
            option, has_value, value = word.partition("=")
            kind = _kind(option)
            if kind is None:
                option = ""
                yield HIDDEN
            else:
                yield f"{option}={_value(option, value, with_model)}" if has_value else option
                option = "" if has_value or kind == "switch" else option
        else:
            yield _value(option, word, with_model) if option else _word(word)
            option = "" if _kind(option) == "words" else option


def _kind(option: str) -> str | None:
    return _KINDS.get(option) or flags.installed().kind(option)


def _value(option: str, value: str, with_model: bool) -> str:
    kind = _kind(option)
    if kind == "model":
        return model_name(value) if with_model else HIDDEN
    if kind == "words":
        try:
            return shown(shlex.split(value), with_model=with_model)
        except ValueError:  # no closing quotation
            return HIDDEN
    if kind == "number":
        return value if flags.is_number(value) else HIDDEN
    return value if flags.installed().may_show(option, value) else HIDDEN


def _word(word: str) -> str:
    """A word, or ``...``, that is neither an option nor the value of one."""
    variable = VARIABLE.fullmatch(word)
    if variable and _NAME.fullmatch(variable[1]):
        return f"{variable[1]}={_setting(variable[1], variable[2])}"
    name = word.rpartition("/")[2]
    return name if _PROGRAMS.fullmatch(name) else HIDDEN


def _setting(name: str, value: str) -> str:
    if name == "SGLANG_PERF_PATCHES":
        return public.selection(value)
    is_number = flags.is_number(value) and not _NOT_A_NUMBER.search(name)
    is_word = value in _WORDS | {""} or value in flags.installed().names
    return value if is_number or is_word else HIDDEN
