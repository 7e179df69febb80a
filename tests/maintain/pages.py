"""The parts of a patch's page that follow from its declaration, its verdicts and its case.

What is written by hand is left as it is.

Measurements are sections of ``tests/benchmarks/results/SET.md`` that begin with a comment::

    <!-- measured: mla.a mla.b; H200; on 0.5.17 0.5.23; by fleet.py; 2026-11-22 -->
    <!-- measured: mla.a(0.5.17) mla.b(0.5.22,0.5.23); H200; by fleet.py; 2026-11-22 -->

It names patches or sets, the machine, and the releases: of all, or of each patch in parentheses. A
section ends at the next such comment or heading. If any of its rows is quoted (see `quotes`), it
names the command and the date too.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from sglang_perf_patches import verify
from sglang_perf_patches.model import releases, setups
from sglang_perf_patches.model.patch import Patch, room_of
from sglang_perf_patches.patch_page import upstream_links

from . import ROOT

RESULTS = "tests/benchmarks/results"
"""Where the committed results are: one file a set."""

ROW_ID = re.compile(r'<a id="([\w.-]+)"></a>')
"""The id of a row of results that is quoted."""

_RUNS = {"cuda": "the release's kernels on your GPU", "mlx": "the release's code on MLX's device"}
"""What `verify` runs, by the device of a case."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_HEADED = re.compile(r"^#+ ([^\n]*)\n(.*?)(?=^#|\Z)", re.DOTALL | re.MULTILINE)
_MEASURED = re.compile(
    r"^<!-- measured: ([^>]*?) -->\n(.*?)(?=^<!-- |\Z)", re.DOTALL | re.MULTILINE
)


class Section(NamedTuple):
    """One measurement; command and date are empty if it does not say them."""

    file: str  # below a checkout
    heading: str  # above it there
    text: str  # Markdown
    machine: str
    on: Mapping[str, tuple[str, ...]]  # patch or set → releases
    command: str = ""
    date: str = ""


def file(patch_id: str) -> str:
    """Where a patch's page is, below a checkout."""
    return f"src/sglang_perf_patches/sets/{room_of(patch_id).replace('.', '/')}/README.md"


def page(text: str, patch: Patch, words: Mapping[str, str]) -> str:
    """The page `text` of a patch, with its blocks as the declaration and the verdicts have them.

    `words` has the verdict on each release, oldest first.
    """
    blocks = {
        "summary": f"{_sentence(patch.summary)} {_switch(patch)}",
        "proven": _proven(patch),
        "switch": _commands(patch),
        "releases": _releases(patch, words),
    }
    for name, content in blocks.items():
        try:
            text = replace_block(text, name, content + "\n")
        except ValueError as error:
            raise ValueError(f"{file(patch.id)}: {error}") from None
    return text


def replace_block(text: str, name: str, content: str) -> str:
    """Put `content` between the comments ``<!-- NAME -->`` and ``<!-- /NAME -->``."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"there is no block {name}")
    return pattern.sub(lambda found: found[1] + content + found[2], text, count=1)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table, whose first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines) + "\n"


def all_sections(root: Path, set_name: str) -> list[Section]:
    sections = []
    file = f"{RESULTS}/{set_name}.md"
    for heading, below in _HEADED.findall((root / file).read_text(encoding="utf-8")):
        for comment, text in _MEASURED.findall(below):
            names, _, rest = comment.partition("; ")
            machine, *more = rest.split("; ")
            told = {part[:3]: part[3:] for part in more}
            common, command = told.get("on ", ""), told.get("by ", "")
            date = next(filter(_DATE.fullmatch, more), "")
            on = {
                name: tuple(own.rstrip(")").split(",")) if own else tuple(common.split())
                for name, _, own in (word.partition("(") for word in names.split())
            }
            sections.append(Section(file, heading, text.strip(), machine, on, command, date))
    return sections


def _switch(patch: Patch) -> str:
    worth = patch.worth
    if worth is None:
        return "Opt-in: it is on only if `SGLANG_PERF_PATCHES` has its full name."
    if worth.rule == "a":
        return f"On by default: [{worth.because}]({_up(patch)}{worth.source}#{worth.row})."
    if worth.rule == "b":
        return f"On by default, because it prevents a fault: {worth.because}."
    number = worth.because.rpartition("#")[2]
    named = {release for variant in patch.variants for release in variant.releases}
    where = "releases" if named & {*releases.KNOWN} else "source builds"
    return (
        f"On by default: it brings upstream's change [#{number}]({upstream_links(patch)[0]}) to "
        f"{where} that lack it."
    )


def _up(patch: Patch) -> str:
    """The way from a page to the top of a checkout."""
    return "../" * file(patch.id).count("/")


def _proven(patch: Patch) -> str:
    """The features with which a check tests the patch; all others gate it."""
    tested = f"[What was tested]({_up(patch)}{RESULTS}/tested.md#{patch.set})"
    measured = f"{tested} lists the releases and machines on which this patch was measured."
    if patch.proven_with is None:
        return f"No feature of a server gates it. {measured}"
    names = [feature.name for feature in setups.FEATURES.all]
    played = ", ".join(f"`{name}`" for name in names if name in patch.proven_with)
    more = f", and with each of these features: {played}" if played else ""
    return (
        f"Tested on a plain server{more}. Any other feature turns the patch off. `explain "
        f"{patch.id}` says what each word means and which flag sets it. {measured}"
    )


def _commands(patch: Patch) -> str:
    sign = "-" if patch.is_default else ""
    text = (
        f"    SGLANG_PERF_PATCHES=all,{sign}{patch.id}\n    sglang-perf-patches verify {patch.id}"
    )
    cases = verify.cases(patch.id)
    if not cases:
        return (
            f"{text}\n\nThe patch's results do not depend on your machine. The project's tests "
            "compared them with stock's on the code of each release."
        )
    what = cases[0].what[:1].lower() + cases[0].what[1:]
    return f"{text}\n\n`verify` runs {_RUNS[cases[0].device]} and checks that {what}"


def _releases(patch: Patch, words: Mapping[str, str]) -> str:
    rows = []
    for release in releases.KNOWN:
        word = words[release]
        variant = next((one for one in patch.variants if release in one.releases), None)
        note = {
            "absent": _sentence(patch.absent_because),
            "built-in": "Upstream has it.",
        }.get(word, _sentence(variant.note) if variant and variant.note else "")
        rows.append((word, note, release))
    lines = ["| releases | verdict | | supported until |", "| --- | --- | --- | --- |"]
    for (word, note), together in groupby(rows, lambda row: row[:2]):
        names = [release for _, _, release in together]
        ends = dict.fromkeys((names[0], names[-1]))
        span, until = releases.TO.join(ends), releases.TO.join(map(releases.supported_until, ends))
        lines.append(f"| {span} | {word} | {note} | {until if word == 'applies' else ''} |")
    text = "\n".join(lines)
    links = upstream_links(patch)
    where = ", ".join(f"[#{link.rpartition('/')[2]}]({link})" for link in links)
    has = ", ".join(filter(None, [where, patch.upstream_note]))
    text += f"\n\nUpstream: {has}." if has else "\n\nUpstream has no such change."
    if patch.requires:
        text += f" Needs {', '.join(f'`{id}`' for id in patch.requires)}."
    folder = (ROOT / file(patch.id)).parent
    names = [name for name in ("__init__.py", "body.py") if (folder / name).is_file()]
    return f"{text} Code: {', '.join(f'[`{name}`]({name})' for name in names)}."


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""
