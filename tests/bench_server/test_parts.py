"""Parts of ``bench server`` that need no server: command, tokens, conclusion."""

import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from linux_mlx.server import free_port
from sglang_perf_patches.bench_server import command, machine, outcome, patches, sides
from sglang_perf_patches.bench_server.outcome import Outcome
from sglang_perf_patches.bench_server.tokens import Tokens, compare, prompts
from sglang_perf_patches.model.errors import OperatorError
from sglang_perf_patches.telemetry import procfs

LAUNCH = (sys.executable, "-m", "sglang.launch_server", "--model-path", "M")


@pytest.mark.parametrize(
    ("words", "url", "said"),
    [
        ([*LAUNCH, "--port", "31000"], None, "http://127.0.0.1:31000"),
        ([*LAUNCH, "--port=31000", "--host", "::1"], None, "http://[::1]:31000"),
        ([*LAUNCH, "--port", "1", "--host", "0.0.0.0"], None, "http://127.0.0.1:1"),
        (LAUNCH, None, "http://127.0.0.1:30000"),
        (["sh", "start.sh"], "http://localhost:8000/", "http://localhost:8000"),
        ([*LAUNCH, "--disaggregation-mode", "decode"], "http://[::1]:8", "http://[::1]:8"),
    ],
)
def test_the_address_of_a_command_or_url(words: Sequence[str], url: str | None, said: str) -> None:
    served = command.parse([*words, "--api-key=k"], url)
    assert (served.url, served.api_key) == (said, "k")
    assert served.command == (*words, "--api-key=k")
    assert command.parse(words, url).api_key is None


@pytest.mark.parametrize(
    ("words", "url", "said"),
    [
        (["sh", "start.sh"], None, "names no --port: give --url"),
        (["sh", "start.sh"], "https://x", "write it as http://HOST:PORT"),
        (["sh", "start.sh"], "http://x:port", "write it as http://HOST:PORT"),
        (["no-such-program", "--port", "1"], None, "does not begin with a program"),
        ([*LAUNCH, "--port", "http"], None, "--port takes a number"),
        ([*LAUNCH, "--ssl-certfile", "c"], None, "plain HTTP"),
        ([*LAUNCH, "--disaggregation-mode", "decode"], None, "a decode server can't be measured"),
    ],
)
def test_what_cannot_be_driven_is_refused(words: list[str], url: str | None, said: str) -> None:
    with pytest.raises(OperatorError, match=said):
        command.parse(words, url)


def test_a_port_is_free_after_a_connection_but_not_under_a_listener() -> None:
    served = command.ServerCommand((), "127.0.0.1", free_port())
    with socket.create_server((served.host, served.port)) as listener:
        with socket.create_connection((served.host, served.port)):
            listener.accept()[0].close()
        with pytest.raises(OperatorError, match="in use"):
            command.require_free(served)
    command.require_free(served)  # though the connection is still in TIME_WAIT


def test_a_side_has_variables_and_flags_of_its_own() -> None:
    texts = "SGLANG_PERF_PATCHES=none", "X=1 Y='2 3' --tp 2 --z=Q=1"
    a, b = sides.described(*texts, "mlx", LAUNCH)
    assert (a.selection, a.is_patched, a.needs_live) == ("none", False, False)
    assert (b.variables, b.flags) == ({"X": "1", "Y": "2 3"}, ["--tp", "2", "--z=Q=1"])
    assert (b.environment["SGLANG_PERF_PATCHES"], b.environment["Y"]) == ("mlx", "2 3")
    plain, named = sides.described(None, "SGLANG_PERF_PATCHES=mla --tp 4", "all", LAUNCH)
    assert (named.selection, named.flags, named.needs_live) == ("mla", ["--tp", "4"], True)
    assert (b.needs_live, plain.adds) == (False, "")
    assert (a.adds, named.adds) == (texts[0], "SGLANG_PERF_PATCHES=mla --tp 4")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("X=1", None), "give --b as well"),
        ((None, "tp 2"), "--b: word 1 is neither NAME=VALUE nor a flag"),
        ((None, "X=1 --port 3"), "--b: --port belongs to the command"),
        ((None, "'"), "--b: No closing quotation"),
        (("X=1", "X=1"), "--a and --b are the same server"),
        ((None, "SGLANG_PERF_PATCHES=all"), "--a and --b are the same server"),
    ],
)
def test_what_is_no_side_is_refused(texts: tuple[str | None, str | None], said: str) -> None:
    with pytest.raises(OperatorError, match=said):
        sides.described(*texts, "all", LAUNCH)


def test_flags_do_not_go_to_the_end_of_a_script() -> None:
    with pytest.raises(OperatorError, match="name the server itself"):
        sides.described(None, "--x", "all", ["sh", "-c", "exec serve"])
    assert sides.described(None, "X=1", "all", ["sh", "-c", "exec serve"])


def test_described_sides_are_named_everywhere() -> None:
    a, b = sides.described(None, "--dtype 'half'", "none", LAUNCH)
    described = made(sides=(a, b), live=[])
    assert outcome.conclusion(described).startswith("Better with b than with a: TPOT 30 % less")
    shown = outcome.to_text(described)
    assert "a: SGLANG_PERF_PATCHES=none\nb: SGLANG_PERF_PATCHES=none --dtype half" in shown
    assert re.search(r"^figure +unit +a +b +b is", shown, re.MULTILINE)
    data = json.loads(outcome.to_json(described))
    assert [side["name"] for side in data["sides"]] == ["a", "b"]
    assert data["sides"][1]["adds"] == "SGLANG_PERF_PATCHES=none --dtype half"
    shown = outcome.to_text(replace(described, live=made().live, live_in_first=made().live))
    assert "a: mlx.kv-arena: live in 3" in shown
    assert "b: mlx.kv-arena: live in 3" in shown


SAME, OTHER, LATER = ((1, 2), (3,), (4,)), ((1, 2), (9,), (4,)), ((1, 2), (3,), (5,))
ONE = [((1,),), ((2,),)]
UNSTEADY = "stock's own boots gave different tokens"


@pytest.mark.parametrize(
    ("stock", "patched", "word", "sentence"),
    [
        ([SAME, SAME], [SAME, SAME], "equal", "for 3 prompts in 4 boots"),
        ([SAME, SAME], [SAME, OTHER], "different", "for 1 of 3 prompts"),
        # Where stock's own boots differ, a patched boot can't be told from stock.
        ([SAME, OTHER], [OTHER, SAME], "equal", f"for 2 prompts in 4 boots; of 1 more, {UNSTEADY}"),
        ([SAME, OTHER], [SAME, LATER], "different", f"for 1 of 2 prompts; of 1 more, {UNSTEADY}"),
        (ONE, ONE, "unsteady", f"{UNSTEADY} for each of 1 prompts"),
    ],
)
def test_tokens_are_compared_prompt_by_prompt(
    stock: list[Tokens], patched: list[Tokens], word: str, sentence: str
) -> None:
    found = compare(stock, patched)
    assert found.word == word
    assert found.sentence == (sentence if word == "unsteady" else f"{word} {sentence}")


def test_the_prompts_are_the_same_every_time_and_unequal() -> None:
    assert prompts() == prompts()
    assert len({tuple(prompt) for prompt in prompts()}) == len(prompts()) == 16
    assert len({len(prompt) for prompt in prompts()}) > 1


def made(**more: Any) -> Outcome:
    changes = {
        "TPOT": outcome.change([10.0, 10.2, 10.1], [7.0, 7.1, 7.05]),
        "throughput": outcome.change([100.0, 101.0, 99.0], [140.0, 141.0, 139.0]),
        "TTFT": outcome.change([50.0, 60.0, 55.0], [51.0, 58.0, 56.0]),
        "boot": outcome.change([60.0, 61.0, 62.0], [60.5, 61.5, 60.0]),
    }
    base = Outcome(
        about={"sglang": "0.5.23", "machine": {"gpu": "one"}, "command": "serve"},
        sides=(sides.Side("stock"), sides.Side("patched", "mlx", needs_live=True)),
        turns=3,
        stopped="",
        changes=changes,
        tokens=compare([((1,),)] * 3, [((1,),)] * 3),
        live=[patches.LiveIn("mlx.kv-arena", "scheduler", 3, 3)],
        live_in_first=[],
        failed={},
        lost=[],
    )
    return replace(base, **more)


MORE = outcome.change([50.0, 51.0, 50.5], [60.0, 61.0, 60.5])
HALF = outcome.change([100.0, 101.0, 102.0], [50.0, 50.5, 51.0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            made().changes,
            "Better with patches: TPOT 30 % less, throughput 40 % more. "
            "Nothing got worse beyond the noise.",
        ),
        ({"TTFT": MORE}, "Worse with patches: TTFT 20 % more."),
        ({"boot": made().changes["boot"]}, "No difference beyond the noise."),
        (
            dict.fromkeys(("ITL", "KV capacity", "boot"), HALF),
            "Better with patches: ITL 50 % less, boot 50 % less. "
            "Worse with patches: KV capacity 50 % less.",
        ),
    ],
)
def test_the_conclusion_names_what_differs(changes: dict[str, outcome.Change], said: str) -> None:
    assert outcome.conclusion(made(changes=changes)) == said
    assert outcome.exit_code(made(changes=changes)) == 0


@pytest.mark.parametrize(
    "more",
    [
        {"turns": 1},
        {"tokens": compare([((1,),)] * 3, [((2,),)] * 3)},
        {"lost": ["mlx.kv-arena"]},
        {"stopped": "turn 3, stock: it crashed"},
    ],
)
def test_what_is_not_shown_is_exit_1(more: dict[str, Any]) -> None:
    assert outcome.exit_code(made(**more)) == 1


def test_amounts_are_for_people() -> None:
    def amount(*patched: float) -> str:
        return outcome.amount(outcome.change([100.0] * len(patched), patched))

    assert amount(70.0, 75.0, 72.0) == "28 % less"
    assert amount(99.0, 103.0, 101.0) == "1 % more"
    assert amount(240.0, 250.0, 260.0) == "2.5 times"
    assert amount(100.2, 99.4, 100.1) == "the same"
    assert outcome.spread([12.34, 1234.5, 0.5]) == "12.3 (0.5-1234)"
    shown = [outcome.spread([value]) for value in (99.96, 999.7, 0.01234, 7.0)]
    assert shown == ["100", "1000", "0.0123", "7"]


def test_the_text_has_figures_tokens_and_patches() -> None:
    shown = outcome.to_text(made())
    assert re.search(r"TPOT +ms +10\.1 \(10-10\.2\) +7\.05 .* 30 % less +better", shown)
    assert re.search(r"TTFT +ms .* noise$", shown, re.MULTILINE)
    assert "greedy tokens: equal for 1 prompt in 6 boots" in shown
    assert "mlx.kv-arena: live in 3 scheduler processes, run in 3" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_json_has_the_rule_and_the_conclusion() -> None:
    data = json.loads(outcome.to_json(made(stopped="turn 3, stock: it crashed")))
    assert (data["sglang"], data["command"]) == ("0.5.23", "serve")
    assert data["rule"] == outcome.RULE
    assert (data["changes"]["throughput"]["is"], data["changes"]["boot"]["unit"]) == ("better", "s")
    assert data["conclusion"].endswith("It stopped early: turn 3, stock: it crashed.")
    assert data["exit_code"] == 1


def test_processes_are_seen_alike_where_there_is_only_ps() -> None:
    """As on a Mac; this process and its parent, in both tables."""
    if not Path("/proc/self/stat").exists() or not shutil.which("ps"):
        pytest.skip("needs both /proc and ps")
    by_ps = {process.pid: process for process in procfs.from_ps("-A")}
    ours = {process.pid: process for process in procfs.table()}[os.getpid()]
    theirs = by_ps[os.getpid()]
    assert procfs.from_ps("-p", str(os.getpid()))[0][:4] == theirs[:4]
    assert (theirs.parent, theirs.group) == (ours.parent, ours.group)
    assert theirs.born
    assert 0.5 < theirs.resident / ours.resident < 2


@pytest.mark.parametrize(
    ("script", "name", "used"),
    [
        ('[ "$1" = --query-gpu=name ] && echo H200 && echo L4 || printf "2\\n3\\n"', "H200, L4", 5),
        ("echo '[N/A]'", "[N/A]", 0),
        ("echo 1; exit 9", "", 0),
        ("exec sleep 60", "", 0),
    ],
)
def test_a_tool_that_fails_or_hangs_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, name: str, used: int
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(machine, "_LIMIT_S", 2)
    assert machine.facts()["gpu"] == name
    assert machine.gpu_bytes() == used * 1024 * 1024
