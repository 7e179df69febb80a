"""The names and words that a report and a page may contain. Whatever else a text says is hidden.

What is private can't be listed: a model, a host, a token may look like anything. So the lists are
of what is public: this project's own names and sentences, versions, and kinds of machines.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from functools import cache

from .. import sets
from ..model import releases, setups
from ..model.feature import flag
from ..model.patch import by_id

HIDDEN, OTHER = "hidden", "other"
"""Instead of text that says something, and instead of a name that is not on a list."""

_VERSION = re.compile(
    r"(?P<public>\d{1,4}\.\d{1,4}(?:\.\d{1,8})?(?:(?:a|b|rc)\d{1,3})?(?:\.post\d{1,3})?"
    r"(?:\.dev\d{1,8})?)(?P<local>\+.*)?",
    re.ASCII | re.DOTALL,
)
_LOCAL = re.compile(r"\+(?:cpu|cu\d{2,3}|rocm\d(?:\.\d){1,2})", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,6}(?:,\d{3})?(?:\.\d{1,3})?%?", re.ASCII)
_RANKS = r"(?:_(?:DP|PP|TP|EP|CP|ATTN|MOE)\d{1,4})*"
_ROLE = re.compile(
    rf"(?:launcher|detokenizer|tokenizer|data_parallel_controller|scheduler){_RANKS}"
    r"|(?:SpawnProcess|ForkProcess|Process)-\d{1,4}(?::\d{1,4})*",
    re.ASCII,
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d\+00:00", re.ASCII)

_SYSTEMS = ("Linux", "Darwin", "Windows")
_KINDS = ("x86_64", "aarch64", "arm64", "AMD64", "ppc64le", "s390x", "riscv64")
_PROCESSORS = (
    *("Intel(R) Xeon(R) Platinum", "Intel(R) Xeon(R) Gold", "Intel(R) Xeon(R) Silver"),
    *("Intel(R) Xeon(R)", "Intel Xeon", "INTEL(R) XEON(R)", "Intel(R) Core(TM)", "Intel"),
    *("AMD EPYC", "AMD Ryzen", "AMD", "Neoverse", "Grace", "Ampere", "ARM", "arm"),
    *("Apple M1", "Apple M2", "Apple M3", "Apple M4", "Apple M5"),
)
_GPUS = (
    *("GB300", "GB200", "GH200", "B300", "B200", "H200", "H100", "H800", "H20", "A100", "A800"),
    *("A10G", "A10", "A16", "A30", "A40", "A6000", "L40S", "L40", "L20", "L4", "T4", "V100"),
    *("RTX 5090", "RTX 4090", "RTX 3090", "RTX PRO 6000", "RTX 6000", "GB10", "Thor", "Orin"),
    *("MI355X", "MI350X", "MI325X", "MI300X", "MI300A", "MI250X", "MI210"),
)
_OURS = """
    % * - -> / 0.6b : a about above accelerator across admit admits admitted after again all
    alone already also an and another any applied apply are argument arguments array arrays as
    ascend at attention attribute back backend backends base bases batch batches be because been
    before begin behind below better between beyond bfloat16 bit body boot boots both bound
    bucket build builds built but by bytes cache cached call called calls can can't captured
    case cases chain chained change changed changes changing class classes code come complete
    conclusion conflict constant context copies copy coroutine could counted cpu cuda
    data-parallel days deactivate decides decode decoded decoding decorators default defaults
    defined definition depth device differ difference different dimensions directly disabled
    disaggregated distribution do does done draft draft-extend dtype each eager eagle early else
    ended ends engine equal error ever every exact exchanged exists fa3 failed false far figure
    file files finished first flashattention flashinfer flashmla float float16 float32 folder
    for forever fork forked forward forwards four fp8 free from full function gained gated gates
    gave gb gdn generated get gets give given gives gone got gpt-oss gpu graph graphs greedy
    grows handler happens hardware has have head header held here hidden hip hisparse holds hook
    host however hybrid idle if import imported importing in index inputs install installed
    instead into is it items itl its itself judged kda keep keeps kept kernel kernels kind know
    known knows kv lacks large last launched launches layer layers learn least length lengths
    less let lets library limit lines live load loaded logits long longest loop lora lost low
    made main makes mamba mask may mb measured median memory metadata metal method missing mla
    mlx mode model module modules mooncake more most ms mtp must name named near nearest needs
    neither network never new next nixl no node nodes noise none nor not nothing now npu nvidia
    object of off often older on once one only opt-in or order other others our out output
    outputs over overlap own p99 packs page paged pages parallelism part pass patch patched
    patches pd peak pending per piece pipeline place plan platform plugin point policy pool
    pools position possible prefill prefilled prefills prefix prefixes process processes prompt
    prompts proven queue qwen3-next radix raised ratio ratios read reads real received refers
    refused release released releases reload reloaded remove removed replaced replacement
    replaces replay replayed request requests requires restored results retract retracted
    retractions round rounds rows run runner runs same say says scheduler second seconds see
    sequence served server server's serves set sets several shape share short shown side sides
    since single six size sizes skewed sliding sliding-window slot slots small so some somebody
    sooner source spec speculative splits stand-in standard start state states step steps still
    stock stock's stop stopped store stored subclass such superseded support supported supports
    swa sync syncs take target tensor tensors test than that the their them then there these
    they third this those though three throughput time times tiny to together token tokens took
    torch tpot trace tracked transfer tree triton trtllm-mla true ttft turn turns twice two
    unchanged under undone unfinished unknown unless unpaged until unused up upstream us use
    used user uses value values verified verify version wait waiting waits was way we were what
    wheel wheels when where which while whole whose wide window windows with within without work
    worked works worse would wrapper write writes written wrong x xpu yet zero
"""
_OF_SERVERS = """
    access address allocate arguments assertion available bad capture checkpoint closed config
    connection converting could couldn't cudagraph decoder detected directory disk does doesn't
    empty enough error errors exception exceeded exist exists expected failed fails found gib
    illegal installed invalid key loading match memory mib missing module must nccl needed not
    null occurred ok option out path permission denied port range reached ready refused reset
    runtime shape shards size space such timed timeout token tokenizer too traceback unable
    unexpected unrecognized unsupported usage warmup weight weights
"""
"""Common words of what a server says last."""
"""What this project's own sentences and the headings of its tables consist of."""


def version(text: str) -> str:
    """A version; of its local part only what names a kind of build."""
    match = _VERSION.fullmatch(text)
    if not match:
        return OTHER
    local = match["local"] or ""
    return match["public"] + (local if not local or _LOCAL.fullmatch(local) else f"+{HIDDEN}")


def date(text: str) -> str:
    """A time as this project writes it."""
    return text if _DATE.fullmatch(text) else OTHER


def role(text: str) -> str:
    """What a process is, as sglang calls its own; a script's own name is not shown.

    >>> role("scheduler_TP0"), role("scheduler_for_acme.py")
    ('scheduler_TP0', 'other')
    """
    return text if _ROLE.fullmatch(text) else OTHER


def system(text: str) -> str:
    """The system and the kind of the processor, and versions between them."""
    parts = text.split()
    return " ".join(word if word in _SYSTEMS + _KINDS else version(word) for word in parts)


def processor(text: str) -> str:
    """The family of a processor."""
    return next((name for name in _PROCESSORS if text.startswith(name)), OTHER)


def gpus(text: str) -> str:
    """The kinds of GPUs in a list with commas."""
    return ", ".join(map(_gpu, text.split(",")))


def selection(text: str) -> str:
    """A choice of patches: names of sets and patches."""
    known = {*names(), *sets.NAMES, "all", "none", "off", "0"}
    items = [item.strip() for item in text.split(",")]
    return ",".join(item if item.removeprefix("-") in known else OTHER for item in items)


def sentence(text: str, *, with_numbers: bool = False) -> str:
    """A sentence of this project, without what it was told by others.

    Args:
        text: the sentence.
        with_numbers: whether short numbers stay.

    >>> sentence("RuntimeError: no such model: me/secret at 10.1.2.3")
    'RuntimeError: no hidden model: hidden at hidden'
    """
    if text in _sentences():
        return text
    shown: list[str] = []
    for word in text.split():
        bare = word.strip("`'\"()[],.;:!?")
        end = word[-1] if word[-1] in ",.;:" and len(word) > 1 else ""
        is_shown = _is_known(bare) or _is_known(word)
        is_shown |= with_numbers and _NUMBER.fullmatch(bare) is not None
        if is_shown:
            shown.append((bare or word) + end)
        elif shown[-1:] != [HIDDEN]:
            shown.append(HIDDEN)
    return " ".join(shown)


@cache
def names() -> frozenset[str]:
    """The ids of the patches."""
    return frozenset(by_id(sets.load()))


def _gpu(text: str) -> str:
    return next((name for name in _GPUS if re.search(rf"\b{re.escape(name)}\b", text)), OTHER)


def _is_known(word: str) -> bool:
    return word in _names_in_sentences() or word.lower() in _words()


@cache
def _words() -> frozenset[str]:
    return frozenset([*_OURS.split(), *_OF_SERVERS.split(), *_in_clauses()])


def _in_clauses() -> Iterator[str]:
    """The words and flags that describe a server's features and uses, in small letters."""
    clauses = [each.clause for each in setups.FEATURES.all]
    clauses += [use.lacking for use in setups.FEATURES.uses]
    for clause in clauses:
        yield from (word.strip("(),").lower() for word in clause.split())
    for feature in setups.FEATURES.all:
        yield from map(flag, feature.arguments())


@cache
def _names_in_sentences() -> frozenset[str]:
    """Patches, releases, the definitions that patches look at, and Python's own exceptions."""
    patches = by_id(sets.load()).values()
    definitions = {name for patch in patches for name in patch.references()}
    errors = {
        name
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    modules = {name.partition(":")[0] for name in definitions}
    return frozenset({*names(), *releases.KNOWN, *definitions, *modules, *errors, *sets.NAMES})


@cache
def _sentences() -> frozenset[str]:
    """Sentences that patches declare."""
    patches = by_id(sets.load()).values()
    since = {f"upstream has it since {patch.built_in_since}" for patch in patches}
    return frozenset({"", *since, *(patch.absent_because for patch in patches)})
