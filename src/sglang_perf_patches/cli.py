"""The command ``sglang-perf-patches``.

Exit codes: 0 fine; 1 something chosen by name is refused, in conflict or failed, a patch named in
full is absent or can't be verified, an upgrade would lose a chosen patch, or stock and patched
differ; 2 bad usage, no sglang, not a sglang tree. ``run`` ends as its command does.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from . import (
    __version__,
    bench,
    bootstrap,
    doctor,
    pages,
    record,
    releases,
    selection,
    sets,
    source,
    verdict,
)
from .bench import report
from .patch import by_id
from .proof import verify
from .selection import Selection, SelectionError
from .verdict import Verdict

ENTRY_POINT = "perf_patches"
"""The name under which ``SGLANG_PLUGINS`` lets this plugin through."""

_FAILED_STATES = {"refused", "conflict", "failed"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; every bad input is one sentence on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parser = _parser()
        given, unknown = parser.parse_known_args(_with_verb(words))
        if unknown and given.verb != "bench":
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        given.options = unknown
        code: int = given.function(given)
    except (
        SelectionError,
        source.TreeError,
        releases.DownloadError,
        sets.FingerprintError,
        record.RecordError,
    ) as error:
        print(f"sglang-perf-patches: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sglang-perf-patches",
        description="Performance fixes for an unmodified, released sglang.",
        epilog="No verb, or --list, means list. Patches are chosen by SGLANG_PERF_PATCHES.",
    )
    parser.add_argument("--version", action="version", version=f"sglang-perf-patches {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    listing = verbs.add_parser("list", help="what each patch would do to a sglang tree")
    listing.set_defaults(function=_list)
    explaining = verbs.add_parser("explain", help="one patch: why, how, its gain, its targets")
    explaining.add_argument("patch", metavar="PATCH")
    explaining.set_defaults(function=_explain)
    for reader in (listing, explaining):
        reader.add_argument(
            "--sglang-path",
            metavar="DIR",
            help="judge this tree (the package, its parent or a checkout), not the installed one",
        )
    status = verbs.add_parser("status", help="what is live in this user's running sglang processes")
    status.set_defaults(function=_status)
    for reader in (listing, explaining, status):
        reader.add_argument("--json", action="store_true", help="for machines")

    examining = verbs.add_parser(
        "doctor", help="what an upgrade to another sglang would do to the patches"
    )
    other = examining.add_mutually_exclusive_group(required=True)
    other.add_argument("--sglang-path", metavar="DIR", help="a tree, as for list")
    other.add_argument(
        "--sglang-version", metavar="V", help="a release: fetched from the index, not installed"
    )
    examining.add_argument("--json", action="store_true", help="for machines")
    examining.set_defaults(function=_doctor)

    verifying = verbs.add_parser(
        "verify", help="compare each patch that applies with stock, on this machine, bit by bit"
    )
    verifying.add_argument("names", nargs="*", metavar="NAME", help="sets or patches; all of them")
    verifying.add_argument(
        "--timeout", type=float, default=900.0, metavar="S", help="seconds that a set may take"
    )
    verifying.set_defaults(function=_verify)
    verifying.add_argument("--json", action="store_true", help="for machines")

    benching = verbs.add_parser(
        "bench",
        help="time stock and patched in turns, after showing that they give the same",
        epilog="One set may be given options of its own; bench SET --help names them.",
        add_help=False,
    )
    benching.add_argument("-h", "--help", action="store_true", help="show this, or a set's options")
    benching.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(bench.NAMES)}")
    benching.add_argument("--json", action="store_true", help="for machines")
    benching.add_argument("--html", type=Path, metavar="FILE", help="write one page with charts")
    benching.set_defaults(function=_bench, usage=benching)

    running = verbs.add_parser(
        "run",
        help="run a command with patches active in it and in every Python it starts",
        description="Works on any release, also on those that load no plugins (before 0.5.11).",
    )
    running.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...")
    running.set_defaults(function=_run)
    return parser


def _with_verb(words: list[str]) -> list[str]:
    """Put in the default verb: ``--list`` is an alias, and options alone mean ``list``."""
    if "--list" in words and not any(
        word in {"run", "explain", "status", "doctor", "verify", "bench"} for word in words
    ):
        words = [word for word in words if word not in {"--list", "list"}]
        return ["list", *words]
    asks_for_help = words[:1] in (["-h"], ["--help"], ["--version"])
    if not words or (words[0].startswith("-") and not asks_for_help):
        return ["list", *words]
    return words


# -- list ------------------------------------------------------------------------------------------


def _list(given: argparse.Namespace) -> int:
    chosen = _selected()
    tree = _tree(given.sglang_path)
    verdicts = verdict.judge_all(sets.load(), tree)
    if given.json:
        print(json.dumps(list_data(tree, chosen, verdicts), indent=2))
    else:
        print(f"sglang {tree.version} at {tree.root}\n")
        print(_table(_list_rows(chosen, verdicts)))
        for note in _notes(tree):
            print(f"\n{note}")
    return _code(chosen, verdicts)


def list_data(tree: source.Tree, chosen: Selection, verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """What ``list --json`` prints."""
    return {
        "sglang": {"version": tree.version, "path": str(tree.root)},
        "selection": chosen.text,
        "patches": [_verdict_data(chosen, judged) for judged in verdicts],
    }


def _verdict_data(chosen: Selection, judged: Verdict) -> dict[str, Any]:
    patch = judged.patch
    variant = judged.variant
    return {
        "id": patch.id,
        "set": patch.set,
        "kind": patch.kind,
        "selected": patch.id in chosen.chosen,
        "verdict": judged.word,
        "reason": judged.reason,
        "upstream": list(patch.upstream),
        "built_in_since": patch.built_in_since,
        "targets": list(variant.targets + variant.adds) if variant else [],
    }


def _list_rows(chosen: Selection, verdicts: Iterable[Verdict]) -> list[list[str]]:
    rows = [["SET", "PATCH", "VERDICT", "ON", "UPSTREAM", "WHY"]]
    for judged in verdicts:
        patch = judged.patch
        on = "on" if patch.id in chosen.chosen else "off"
        if not patch.is_default and on == "off":
            on = "off (opt-in)"
        upstream = " ".join("#" + name.rpartition("#")[2] for name in patch.upstream) or "-"
        why = patch.summary if judged.word == "applies" else judged.reason
        rows.append([patch.set, patch.id, judged.word, on, upstream, why])
    return rows


def _notes(tree: source.Tree) -> list[str]:
    notes = []
    allowed = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")]
    if tree.path("sglang.srt.plugins") is None:
        notes.append(
            "This release loads no plugins: start the server with "
            "`sglang-perf-patches run COMMAND ...`."
        )
    elif any(allowed) and ENTRY_POINT not in allowed:
        notes.append(
            f"SGLANG_PLUGINS does not name {ENTRY_POINT}, so sglang will not load this plugin: "
            "add the name, or start the server with `sglang-perf-patches run COMMAND ...`."
        )
    return notes


def _code(chosen: Selection, verdicts: Iterable[Verdict]) -> int:
    return 1 if any(_is_lost(chosen, judged) for judged in verdicts) else 0


def _is_lost(chosen: Selection, judged: Verdict) -> bool:
    """Whether the operator asked for a patch by name and can't have it."""
    id = judged.patch.id
    return (judged.word == "refused" and id in chosen.by_name) or (
        judged.word == "absent" and id in chosen.in_full
    )


# -- explain ---------------------------------------------------------------------------------------


def _explain(given: argparse.Namespace) -> int:
    patches = by_id(sets.load())
    if given.patch not in patches:
        near = difflib.get_close_matches(given.patch, patches, n=3, cutoff=0.4)
        raise SelectionError(
            f"unknown patch {given.patch!r}: "
            + (f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(patches)}")
        )
    chosen = _selected()
    tree = _tree(given.sglang_path)
    judged = next(
        found for found in verdict.judge_all(sets.load(), tree) if found.patch.id == given.patch
    )
    if given.json:
        print(json.dumps(_explain_data(tree, chosen, judged), indent=2))
    else:
        print(_explain_text(tree, judged))
    return 1 if _is_lost(chosen, judged) else 0


def _explain_data(tree: source.Tree, chosen: Selection, judged: Verdict) -> dict[str, Any]:
    patch = judged.patch
    return {
        "sglang": {"version": tree.version, "path": str(tree.root)},
        **_verdict_data(chosen, judged),
        "summary": patch.summary,
        "why": patch.why,
        "how": patch.how,
        "gain": patch.gain,
        "condition": patch.condition,
        "requires": list(patch.requires),
        "superseded_by": list(patch.superseded_by),
        "definitions": [
            {"reference": reference, "role": role, "file": file, "line": line}
            for reference, role, file, line in _places(tree, judged)
        ],
        "differences": [
            {"reference": ref, "diff": diff} for ref, diff in _differences(tree, judged)
        ],
    }


def _explain_text(tree: source.Tree, judged: Verdict) -> str:
    patch = judged.patch
    parts = [f"{patch.id} ({patch.kind}): {patch.summary}"]
    parts.append(f"On sglang {tree.version}: {judged.word}: {judged.reason}.")
    for title, text in (
        ("Why", patch.why),
        ("How", patch.how),
        ("Gain", patch.gain),
        ("Condition", patch.condition),
        ("Opt-in", patch.opt_in),
        ("Here", judged.variant.note if judged.variant else ""),
    ):
        if text:
            parts.append(_paragraph(title, text))
    if patch.upstream:
        parts.append("Upstream:\n" + "\n".join(f"  {link}" for link in pages.upstream_links(patch)))
    for title, names in (("Needs", patch.requires), ("Superseded by", patch.superseded_by)):
        if names:
            parts.append(f"{title}: {', '.join(names)}")
    places = [
        f"  {role:<8} {reference}  {f'{file}:{line}' if file else 'not there'}"
        for reference, role, file, line in _places(tree, judged)
    ]
    if places:
        parts.append("Definitions:\n" + "\n".join(places))
    for reference, diff in _differences(tree, judged):
        parts.append(f"{reference}, from {judged.nearest} to this tree:\n{diff}")
    return "\n\n".join(parts)


def _paragraph(title: str, text: str) -> str:
    return f"{title}:\n" + textwrap.fill(
        " ".join(text.split()), 96, initial_indent="  ", subsequent_indent="  "
    )


def _places(tree: source.Tree, judged: Verdict) -> list[tuple[str, str, str, int]]:
    """Reference, role, file and first line of each definition of the variant that fits best."""
    variant = judged.variant or next(
        (found for found in judged.patch.variants if judged.nearest in found.releases), None
    )
    if variant is None:
        return []
    roles = [(reference, "changes") for reference in variant.targets]
    roles += [(reference, "adds") for reference in variant.adds]
    roles += [(reference, "needs") for reference in variant.depends]
    found = []
    for reference, role in roles:
        definition = tree.definition(reference)
        if definition:
            found.append((reference, role, str(definition.path), definition.lines[0][0]))
        else:
            found.append((reference, role, "", 0))
    return found


def _differences(tree: source.Tree, judged: Verdict) -> list[tuple[str, str]]:
    """For a refusal: each unknown definition, and its diff from the nearest known release."""
    if judged.nearest is None:
        return []
    try:
        known = source.Tree(source.find(releases.tree(judged.nearest)))
    except releases.DownloadError as error:
        return [(judged.unknown[0], f"  (no copy of {judged.nearest} to compare with: {error})")]
    found = []
    for reference in judged.unknown:
        before, after = known.definition(reference), tree.definition(reference)
        lines = difflib.unified_diff(
            before.text.splitlines() if before else [],
            after.text.splitlines() if after else [],
            f"{judged.nearest}",
            f"{tree.root}",
            lineterm="",
        )
        found.append((reference, "\n".join(lines)))
    return found


# -- status ----------------------------------------------------------------------------------------


def _status(given: argparse.Namespace) -> int:
    processes = record.read_all()
    if given.json:
        shown = [{k: v for k, v in data.items() if k != "selection"} for data in processes]
        print(json.dumps({"processes": shown}, indent=2))
    elif not processes:
        print("no running sglang process of this user has patches of ours")
    else:
        print("\n\n".join(_servers_text(processes)))
    return 1 if any(_has_failed(data) for data in processes) else 0


def _servers_text(processes: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The processes one by one, those of a server below a line for it."""
    for server, members in groupby(processes, key=lambda data: data["server"]):
        of_server = list(members)
        count = f"{len(of_server)} process{'es' if len(of_server) > 1 else ''}"
        ended = "" if server in {data["pid"] for data in of_server} else ", its launcher has ended"
        yield f"server {server}: {count}{ended}"
        yield from map(_status_text, of_server)


def _status_text(data: dict[str, Any]) -> str:
    started = datetime.fromtimestamp(data["started"]).astimezone().isoformat(" ", "seconds")
    head = f"{data['pid']}  {data['role']}  sglang {data['sglang']}  since {started}"
    rows = [
        ["  " + state["id"], state["state"], "has run" if state["ran"] else "-", state["reason"]]
        for state in data["patches"]
        if state["state"] != "off"
    ]
    return f"{head}\n{_table([['  PATCH', 'STATE', 'RUN', 'WHY'], *rows])}"


def _has_failed(data: dict[str, Any]) -> bool:
    """Whether a process lacks what was chosen for it by name."""
    try:
        chosen = selection.parse(data.get("selection", "all"), by_id(sets.load()))
    except SelectionError:
        return False
    return any(
        (state["state"] in _FAILED_STATES and state["id"] in chosen.by_name)
        or (state["state"] == "absent" and state["id"] in chosen.in_full)
        for state in data["patches"]
    )


# -- run -------------------------------------------------------------------------------------------


def _run(given: argparse.Namespace) -> int:
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        print("sglang-perf-patches: run needs a command", file=sys.stderr)
        return 2
    environment = dict(os.environ)
    chosen = _selected()
    if chosen.chosen:
        verdicts = verdict.judge_each(sets.load(), _tree(None))
        lost = [judged for judged in verdicts if _is_lost(chosen, judged)]
        if lost and selection.strict_from_environment():
            line = f"{lost[0].patch.id} is {lost[0].word}: {lost[0].reason}"
            print(f"sglang-perf-patches: {line}", file=sys.stderr)
            return 1
        environment["PYTHONPATH"] = _python_path(environment.get("PYTHONPATH", ""))
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        # As shells do: 127 where there is no such command, 126 where it can't be run.
        print(f"sglang-perf-patches: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _python_path(present: str) -> str:
    """PYTHONPATH with the bootstrap folder first, and there only."""
    ours = os.fspath(bootstrap.FOLDER)
    others = [place for place in present.split(os.pathsep) if place and place != ours]
    return os.pathsep.join([ours, *others])


# -- doctor ----------------------------------------------------------------------------------------


def _doctor(given: argparse.Namespace) -> int:
    chosen = _selected()
    here, there = _tree(None), doctor.other_tree(given.sglang_path, given.sglang_version)
    prospects = doctor.compare(
        verdict.judge_all(sets.load(), here), verdict.judge_all(sets.load(), there)
    )
    lost = doctor.lost(prospects, chosen.chosen)
    if given.json:
        data = {
            "from": {"version": here.version, "path": str(here.root)},
            "to": {"version": there.version, "path": str(there.root)},
            "selection": chosen.text,
            "patches": [
                {
                    "id": found.here.patch.id,
                    "change": found.change,
                    "from": found.here.word,
                    "to": found.there.word,
                    "reason": found.there.reason,
                }
                for found in prospects
            ],
            "lost": lost,
        }
        print(json.dumps(data, indent=2))
    else:
        rows = [["PATCH", here.version, there.version, "CHANGE", "WHY"]]
        for found in prospects:
            words = [found.here.word, found.there.word, found.change, found.there.reason]
            rows.append([found.here.patch.id, *words])
        print(f"from sglang {here.version} at {here.root}")
        print(f"to   sglang {there.version} at {there.root}\n\n{_table(rows)}")
        if lost:
            print(f"\nlost, and chosen: {', '.join(lost)}")
    return 1 if lost else 0


# -- verify ----------------------------------------------------------------------------------------


def _verify(given: argparse.Namespace) -> int:
    named = _named(given.names)
    tree = _tree(None)
    judged = [
        found for found in verdict.judge_all(sets.load(), tree) if found.patch.id in named.chosen
    ]
    if not given.json:
        print(f"sglang {tree.version} at {tree.root}\n", flush=True)
    width = max(len(found.patch.id) for found in judged)
    outcomes = []
    for outcome in verify.verify(judged, limit_s=given.timeout):
        outcomes.append(outcome)
        if not given.json:
            print(f"{outcome.patch:<{width}}  {_outcome_text(outcome)}", flush=True)
    if given.json:
        data = {
            "sglang": {"version": tree.version, "path": str(tree.root)},
            "outcomes": [asdict(outcome) for outcome in outcomes],
        }
        print(json.dumps(data, indent=2))
    return verify.exit_code(outcomes, named.in_full)


def _named(names: Sequence[str]) -> Selection:
    """The patches that were named: a set's name stands for its policy patches too."""
    patches = by_id(sets.load())
    members = [id for id, patch in patches.items() if not names or patch.set in names]
    found = selection.parse(",".join([*names, *members]), patches)
    return Selection(found.text, found.chosen, found.by_name, frozenset(names) & found.in_full)


def _outcome_text(outcome: verify.Outcome) -> str:
    if outcome.word == "equal" and outcome.device:
        return (
            f"equal      {outcome.compared} comparisons in {outcome.seconds:.0f} s on "
            f"{verify.ON[outcome.device]}: {outcome.reason}"
        )
    return f"{outcome.word:<9}  {outcome.reason}"


# -- bench -----------------------------------------------------------------------------------------


def _bench(given: argparse.Namespace) -> int:
    if given.help and len(given.sets) != 1:
        given.usage.print_help()
        return 0
    names = _bench_sets(given.sets, ["--help"] if given.help else given.options)
    tree = _tree(None)
    tables: list[report.Table] = []
    ended: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name in names:
        print(f"bench {name} ...", file=sys.stderr, flush=True)
        for found in bench.measure(name, given.options):
            if isinstance(found, report.Table):
                tables.append(found)
                if not given.json:
                    print(f"{report.to_text(found)}\n", flush=True)
            else:
                ended[name], reasons[name] = found
        if not given.json and ended[name] != "equal":
            print(f"{name}: {ended[name]}: {reasons[name]}\n", flush=True)
    made = report.Report(
        f"{tree.version} at {tree.root}", report.machine(), tuple(tables), ended, reasons
    )
    if given.json:
        print(report.to_json(made))
    if given.html:
        given.html.write_text(report.to_html(made), encoding="utf-8")
    return report.worst(list(ended.values()))


def _bench_sets(named: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    """The sets to bench; options of its own must be ones that the only set has."""
    for name in named:
        if name not in bench.NAMES:
            raise SelectionError(f"unknown set {name!r}: the sets are {', '.join(bench.NAMES)}")
    names = tuple(dict.fromkeys(named)) or bench.NAMES
    if len(names) == 1:
        bench.parser(names[0]).parse_args(list(options))  # says what is wrong, and ends
    elif set(options) - {"--quick"}:
        raise SelectionError(f"{options[0]}: such an option needs one set's name before it")
    return names


# -- shared ----------------------------------------------------------------------------------------


def _selected() -> Selection:
    return selection.parse(selection.from_environment(), by_id(sets.load()))


def _tree(path: str | None) -> source.Tree:
    return source.Tree(source.find(Path(path)) if path is not None else source.find_installed())


def _table(rows: list[list[str]]) -> str:
    """Columns as wide as their widest cell, the last one free."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + row[-1:])
        for row in rows
    )


if __name__ == "__main__":
    sys.exit(main())
