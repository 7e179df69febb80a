"""What a result of ``bench server`` shows: known words only, and ``...`` for everything else.

Private words can't be recognized, because a host or a token may look like anything.
"""

from __future__ import annotations

import builtins
import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from .. import sets
from ..model import releases, setups
from ..model.feature import flag as flag_of
from ..model.patch import by_id

HIDDEN = "..."

_OF_MODELS = "--model --model-path --tokenizer-path --speculative-draft-model-path"
_OF_NUMBERS = """
    --tp --tp-size --dp --dp-size --ep --ep-size --pp --pp-size --port --num-prompts --request-rate
    --random-input-len --random-output-len --random-range-ratio --max-concurrency
    --mem-fraction-static --max-running-requests --max-total-tokens --chunked-prefill-size
    --page-size --context-length --cuda-graph-bs --cuda-graph-max-bs --random-seed --seed
    --hicache-ratio --max-mamba-cache-size --speculative-num-steps --speculative-eagle-topk"""
_OTHERS = """
    -m -c --json --backend --dataset-name --dtype --load-format --schedule-policy
    --attention-backend --prefill-attention-backend --decode-attention-backend"""
_VALUES = """
    auto half bfloat16 float16 fp8 fp8_e4m3 fp8_e5m2 cuda cpu mps dummy sglang random random-ids
    sharegpt fcfs lpm triton fa3 fa4 flashinfer trtllm_mha trtllm_mla eagle eagle3 nextn ngram
    prefill decode null extra_buffer no_buffer"""
_PROGRAM = re.compile(
    r"python(3(\.\d{1,2})?)?|sglang(\.launch_server)?|serve|env|sh|bash|exec|nohup|numactl"
    r"|launch_server\.py|[|;&]{1,2}"
)
_VARIABLE = re.compile(
    r"((?:SGLANG|CUDA|NCCL|TORCH|TRITON|MLX|OMP|HF|LD)_[A-Z0-9_]{1,60}|PYTHON[A-Z]+)=(.*)",
    re.DOTALL,
)
_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,6})?|inf")
_SHORT = re.compile(r"[0-9]{1,2}(,[0-9]{1,2}){0,15}")  # a switch or devices, and no PIN
_MODEL = re.compile(
    r"(?!hf_|sk-|gh[pos]_|github_pat_|glpat-|xox|A[KS]IA|eyJ)"  # how tokens begin
    r"[A-Za-z][A-Za-z0-9]{0,19}([-_.][A-Za-z0-9]{1,20}){0,12}"
)


def shown(words: Sequence[str]) -> str:
    """A command with ``...`` in place of every word that is not known to be public.

    >>> shown(["env", "HF_TOKEN=hf_1", "serve", "--port", "1", "--pw", "k"])
    'env HF_TOKEN=... serve --port 1 ...'
    """
    kept: list[str] = []
    flag = ""  # the known one before the word
    for word in words:
        name, is_set, value = word.partition("=")
        if not word.startswith("-") or _NUMBER.fullmatch(word):
            text = _value(flag, word)
        else:
            flag = name if name in _public() else ""
            text = f"{flag}={_value(flag, value)}" if flag and is_set else flag or HIDDEN
        if text != HIDDEN or kept[-1:] != [HIDDEN]:
            kept.append(text)
    return shlex.join(kept)


def model_name(path: str) -> str:
    """The last name of a model's path or id; ``...`` for an address or a token."""
    name = path.rstrip("/").rpartition("/")[2]
    is_name = _MODEL.fullmatch(name) and "://" not in path
    return name if is_name or not path else HIDDEN


def names(text: str) -> str:
    """The public names in an output: ``RuntimeError, --tp-size``; ``...`` for none."""
    words = dict.fromkeys(word.strip(".:") for word in re.findall(r"[\w.:-]+", text))
    return ", ".join(filter(_public().__contains__, words)) or HIDDEN


def names_in(log: Path) -> str:
    """The public names at the end of a log."""
    return names(log.read_bytes()[-2000:].decode(errors="replace"))


@cache
def _public() -> frozenset[str]:
    """Known flags, and the names of patches, sets, releases and errors."""
    flags = {flag_of(name) for each in setups.FEATURES.all for name in each.arguments()}
    errors = {name for name in dir(builtins) if name.endswith(("Error", "Exception"))}
    errors |= {"torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "torch.AcceleratorError"}
    ours = {*by_id(sets.load()), *sets.NAMES, *releases.KNOWN}
    return frozenset({*flags, *f"{_OF_MODELS} {_OF_NUMBERS} {_OTHERS}".split(), *errors, *ours})


def _value(flag: str, word: str) -> str:
    """A word that is no flag; `flag` is the known one before it, or ""."""
    if flag in _OF_MODELS.split():
        return model_name(word)
    if flag in _OF_NUMBERS.split() and _NUMBER.fullmatch(word):
        return word
    if flag and word.lower() in _VALUES.split():
        return word
    if found := _VARIABLE.fullmatch(word):
        name, value = found.groups()
        items = {item.strip().removeprefix("-") for item in value.split(",")}
        is_ours = name == "SGLANG_PERF_PATCHES" and items <= _public() | {"all", "none"}
        return word if is_ours or _SHORT.fullmatch(value) else f"{name}={HIDDEN}"
    program = word.rpartition("/")[2]
    return program if _PROGRAM.fullmatch(program) else HIDDEN
