"""A page for each patch, made from its declaration, its verdicts, its case and what was measured.

Measurements are sections of ``tests/SET/**/*.md`` that begin with a comment::

    <!-- measured: mla.a mla.b; H200; on 0.5.17 0.5.23 -->
    <!-- measured: mla.a(0.5.17) mla.b(0.5.22,0.5.23); H200 -->

It names patches or sets, the machine, and the releases: of all, or of each patch in parentheses. A
section ends at the next such comment or heading. A page shows it with the heading above it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from sglang_perf_patches import proof
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.patch import Patch, Variant
from sglang_perf_patches.proof.verify import ON

_HEADED = re.compile(r"^#+ ([^\n]*)\n(.*?)(?=^#|\Z)", re.DOTALL | re.MULTILINE)
_MEASURED = re.compile(
    r"^<!-- measured: ([^>]*?) -->\n(.*?)(?=^<!-- |\Z)", re.DOTALL | re.MULTILINE
)


class Section(NamedTuple):
    """One measurement.

    Attributes:
        file: where it is, below a checkout.
        heading: what it stands below there.
        text: Markdown.
        machine: what it was measured on.
        on: patch or set → the releases on which it was measured.
    """

    file: str
    heading: str
    text: str
    machine: str
    on: Mapping[str, tuple[str, ...]]


def folder(patch: Patch) -> str:
    """Where a patch's page is, below a checkout: beside the code of its set."""
    return f"src/sglang_perf_patches/sets/{patch.set}"


def name(patch: Patch) -> str:
    """The file name of a patch's page."""
    return patch.id.partition(".")[2] + ".md"


def page(patch: Patch, words: Mapping[str, str], measured: Sequence[Section]) -> str:
    """The page of a patch.

    Args:
        patch: its declaration.
        words: release → verdict, oldest first.
        measured: as `sections` gives them.
    """
    parts = [
        f"# {patch.id}\n",
        f"{_sentence(patch.summary)} " + _switch(patch),
        # Put first who gains how much, and who does not.
        patch.gain,
        _table(patch.figures),
        f"**Condition.** {patch.condition}",
        _worth(patch),
        f"## Why\n\n{patch.why}",
        f"## How\n\n{patch.how}",
        f"## On which releases\n\n{_releases(patch, words)}",
    ]
    if measured:
        parts.append("## Measured")
    up = "../" * (folder(patch).count("/") + 1)
    for section in measured:
        link = f"[{section.file}]({up}{section.file})"
        parts.append(f"{section.heading}, from {link}:\n\n{section.text}")
    parts.append(f"## Verify it\n\n{_verification(patch)}")
    parts.append(f"## In the code\n\n{_code(patch)}")
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def sections(root: Path, patch: Patch) -> list[Section]:
    """The measured sections of a checkout that name a patch."""
    return [one for one in all_sections(root, patch.set) if {patch.id, patch.set} & one.on.keys()]


def all_sections(root: Path, set_name: str) -> list[Section]:
    """The measured sections of a set, file by file."""
    found = []
    for path in sorted((root / "tests" / set_name).rglob("*.md")):
        file = path.relative_to(root).as_posix()
        for heading, below in _HEADED.findall(path.read_text(encoding="utf-8")):
            for comment, text in _MEASURED.findall(below):
                names, _, rest = comment.partition(";")
                machine, _, common = rest.partition("; on ")
                on = {
                    name: tuple(own.rstrip(")").split(",")) if own else tuple(common.split())
                    for name, _, own in (word.partition("(") for word in names.split())
                }
                found.append(Section(file, heading, text.strip(), machine.strip(), on))
    return found


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown, of which the first is the heading; nothing for none."""
    if not rows:
        return ""
    size = len(rows[0])
    full = [row if len(row) > 1 else [f"**{row[0]}**", *[""] * (size - 1)] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in full]
    lines.insert(1, "|" + " --- |" * size)
    return "\n".join(lines)


def _switch(patch: Patch) -> str:
    return "On by default." if patch.is_default else "A policy: opt-in, by its full name."


def _worth(patch: Patch) -> str:
    """Why it is on by default."""
    if patch.worth is None:
        return ""
    told = {
        "a": "it was measured to gain",
        "b": "it prevents a fault",
        "c": "it is an upstream change for which the project was made",
    }
    if patch.worth.rule == "in doubt":
        return f"**In doubt** whether it stays on by default: {patch.worth.because}."
    because = patch.worth.because
    if patch.worth.rule == "c":
        because = f"[#{because.rpartition('#')[2]}]({patch.upstream_links()[0]})"
    return f"**On by default, because** {told[patch.worth.rule]}: {because}."


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
    lines = ["| releases | verdict | |", "| --- | --- | --- |"]
    for (word, note), together in groupby(rows, lambda row: row[:2]):
        names = [release for _, _, release in together]
        span = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
        lines.append(f"| {span} | {word} | {note} |")
    text = "\n".join(lines)
    links = patch.upstream_links()
    where = ", ".join(f"[#{link.rpartition('/')[2]}]({link})" for link in links)
    has = ", ".join(filter(None, [where, patch.upstream_note]))
    text += f"\n\nUpstream: {has}." if has else "\n\nUpstream has no such change."
    for title, ids in (("Needs", patch.requires), ("Superseded by", patch.superseded_by)):
        if ids:
            text += f"\n\n{title} {', '.join(f'`{id}`' for id in ids)}."
    return text


def _verification(patch: Patch) -> str:
    lines = [
        f"    sglang-perf-patches explain {patch.id}",
        f"    sglang-perf-patches verify {patch.id}",
        "    sglang-perf-patches status",
    ]
    text = "\n".join(lines)
    for case in proof.cases(patch.set):
        if case.patch == patch.id:
            text += f"\n\n`verify` compares {case.what}, on {ON[case.device]}."
    return text


def _code(patch: Patch) -> str:
    installs = dict.fromkeys(variant.install for variant in patch.variants)
    lines = []
    for install in installs:
        module, _, function = install.partition(":")
        file = module.rpartition(".")[2] + ".py"
        lines.append(f"- [`{file}`]({file}): `{function}`, which changes")
        changed: dict[str, None] = {}
        for variant in patch.variants:
            if variant.install == install:
                changed.update(dict.fromkeys(_changes(variant)))
        lines += [f"  - {reference}" for reference in changed]
    lines.append("- `__init__.py`: the declaration; `known.json`: the fingerprints")
    return "\n".join(lines)


def _changes(variant: Variant) -> list[str]:
    return [f"`{reference}`" for reference in variant.targets] + [
        f"`{reference}` (added)" for reference in variant.adds
    ]


def _sentence(text: str) -> str:
    """A declaration's phrase as a sentence."""
    text = text.strip()
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""
