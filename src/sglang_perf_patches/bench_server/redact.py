"""What a result of ``bench server`` shows: known words only, and ``...`` for everything else.

Private words can't be recognized, because a host or a token may look like anything.
"""

from __future__ import annotations

import builtins
import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache

from .. import sets
from ..model import releases, setups
from ..model.feature import flag
from ..model.patch import by_id

HIDDEN = "..."
OF_SHELLS = frozenset({"-c", "-lc", "-ic", "-ec"})  # the options of a shell that take a script
VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)  # an assignment in front of a command

_MODELS = "--model --model-path --tokenizer-path --speculative-draft-model-path"
_NUMBERS = """
    --tp --tp-size --dp --dp-size --ep --ep-size --pp --pp-size --port --turns --num-prompts
    --request-rate --random-input-len --random-output-len --random-range-ratio --max-concurrency
    --mem-fraction-static --max-running-requests --max-total-tokens --chunked-prefill-size
    --page-size --context-length --cuda-graph-bs --cuda-graph-max-bs --random-seed --seed
    --hicache-ratio --max-mamba-cache-size --speculative-num-steps --speculative-eagle-topk"""
_CHOICES = """
    --backend --dataset-name --device --dtype --kv-cache-dtype --load-format --schedule-policy
    --quantization --attention-backend --prefill-attention-backend --decode-attention-backend
    --speculative-algorithm --disaggregation-mode --mamba-radix-cache-strategy"""
_CHOSEN = """
    auto half bfloat16 float16 fp8 fp8_e4m3 fp8_e5m2 cuda cpu mps dummy sglang random random-ids
    sharegpt fcfs lpm triton fa3 fa4 flashinfer trtllm_mha trtllm_mla eagle eagle3 nextn ngram
    prefill decode null extra_buffer no_buffer"""
_PROGRAM = re.compile(
    r"python(3(\.\d{1,2})?)?|sglang(-perf-patches|\.launch_server)?|serve|env|sh|bash|exec|bench"
    r"|server|run|nohup|numactl|launch_server\.py|[|;&]{1,2}"
)
_SETTING = re.compile(r"(SGLANG|CUDA|NCCL|TORCH|TRITON|MLX|OMP|HF|LD)_[A-Z0-9_]{1,60}|PYTHON[A-Z]+")
_OF_A_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|AUTH|PIN|CRED|COOKIE")
_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,6})?|[0-9]{1,6}(,[0-9]{1,6}){1,15}|inf")
_MODEL = re.compile(r"[A-Za-z][A-Za-z0-9]{0,19}([-_.][A-Za-z0-9]{1,20}){0,12}")
_ADDRESS = re.compile(r"://|[@?\s]|(^|/)(hf_|sk-|gh[pos]_|github_pat_|glpat-|xox|A[KS]IA|eyJ)")


def shown(words: Sequence[str]) -> str:
    """A command with ``...`` in place of every word that is not known to be public.

    >>> shown(["env", "HF_TOKEN=hf_1", "serve", "--port", "1", "--pw", "k"])
    'env HF_TOKEN=... serve --port 1 ...'
    """
    kept: list[str] = []
    for word in _each(words):
        if word != HIDDEN or kept[-1:] != [HIDDEN]:
            kept.append(word)
    return shlex.join(kept)


def model_name(path: str) -> str:
    """The last name of a model's path or id; ``...`` for an address or a token."""
    name = path.rstrip("/").rpartition("/")[2]
    is_name = _MODEL.fullmatch(name) and not _ADDRESS.search(path)
    return name if is_name or not path else HIDDEN


def names(text: str) -> str:
    """The public names in an output: ``RuntimeError, --tp-size``; ``...`` for none."""
    words = dict.fromkeys(word.strip(".:") for word in re.findall(r"[\w.:-]+", text))
    return ", ".join(filter(_public().__contains__, words)) or HIDDEN


@cache
def _public() -> frozenset[str]:
    """Known flags, and the names of patches, sets, releases and errors."""
    flags = {flag(name) for each in setups.FEATURES.all for name in each.arguments()}
    errors = {name for name in dir(builtins) if name.endswith(("Error", "Exception"))}
    errors |= {"torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "torch.AcceleratorError"}
    ours = {*OF_SHELLS, *by_id(sets.load()), *sets.NAMES, *releases.KNOWN}
    more = f"-m -- --json --keep --url --a --b {_NUMBERS} {_CHOICES} {_MODELS}"
    return frozenset({*flags, *more.split(), *errors, *ours})


def _each(words: Sequence[str]) -> Iterator[str]:
    """Each word, or ``...`` in its place."""
    option = ""
    for word in words:
        name, is_set, value = word.partition("=")
        if not re.match(r"-(?!\d)\S*$", word):
            yield _value(option, word)
        elif name in _public():
            option = name
            yield f"{name}={_value(name, value)}" if is_set else name
        else:
            option = ""
            yield HIDDEN


def _value(option: str, word: str) -> str:
    """A word that is no option; `option` is the one before it, or ""."""
    if option in _MODELS.split():
        return model_name(word)
    if option in OF_SHELLS | {"--a", "--b"}:
        with contextlib.suppress(ValueError):  # no closing quotation
            return shown(shlex.split(word))
    is_number = option in _NUMBERS.split() and _NUMBER.fullmatch(word)
    if is_number or (option in _CHOICES.split() and word.lower() in _CHOSEN.split()):
        return word
    found = VARIABLE.fullmatch(word)
    if found and _SETTING.fullmatch(found[1]):
        is_open = _NUMBER.fullmatch(found[2]) and not _OF_A_SECRET.search(found[1])
        names = (item.strip().removeprefix("-") for item in found[2].split(","))
        is_ours = found[1] == "SGLANG_PERF_PATCHES" and {*names} <= _public() | {"all", "none"}
        return word if is_open or is_ours else f"{found[1]}={HIDDEN}"
    name = word.rpartition("/")[2]
    return name if _PROGRAM.fullmatch(name) else HIDDEN
