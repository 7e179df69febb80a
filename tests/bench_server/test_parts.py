"""Parts of ``bench server`` that need no server: command, tokens, conclusion."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_perf_patches.bench_server import (
    UsageError,
    command,
    noise,
    outcome,
    patches,
    sides,
)
from sglang_perf_patches.bench_server.outcome import Outcome
from sglang_perf_patches.bench_server.shown import spread, to_text
from sglang_perf_patches.bench_server.tokens import compare, prompts
from sglang_perf_patches.bench_server.turns import Stopped, order
from sglang_perf_patches.telemetry import procfs

LAUNCH = (sys.executable, "-m", "sglang.launch_server", "--model-path", "M")


def test_a_port_is_taken_from_the_command_or_found() -> None:
    assert command.parse([*LAUNCH, "--port", "31000"]).url == "http://127.0.0.1:31000"
    named = command.parse([*LAUNCH, "--port=31000", "--host", "::1", "--api-key=k"])
    assert (named.url, named.api_key) == ("http://[::1]:31000", "k")
    assert command.parse([*LAUNCH, "--port", "1", "--host", "0.0.0.0"]).host == "127.0.0.1"
    server = command.parse(LAUNCH)
    assert server.command == (*LAUNCH, "--port", str(server.port))
    assert 12_000 <= server.port < 22_000  # below those that 0.5.23 draws itself


def test_a_script_must_say_where_its_server_answers() -> None:
    with pytest.raises(UsageError, match=r"where will `sh \.\.\.` answer"):
        command.parse(["sh", "start.sh"])
    server = command.parse(["sh", "start.sh"], "http://localhost:8000/")
    assert (server.command, server.url) == (("sh", "start.sh"), "http://localhost:8000")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--port", "http"], "--port takes a number"),
        (["--ssl-certfile", "c"], "plain HTTP"),
        (["--disaggregation-mode", "decode"], "a decode server can't be measured by itself"),
    ],
)
def test_what_cannot_be_driven_is_refused(more: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        command.parse([*LAUNCH, *more])


def test_a_port_is_free_after_a_connection_but_not_under_a_listener() -> None:
    served = command.ServerCommand((), "127.0.0.1", command.free_port("127.0.0.1"))
    with socket.create_server((served.host, served.port)) as listener:
        with socket.create_connection((served.host, served.port)):
            listener.accept()[0].close()
        with pytest.raises(UsageError, match="in use"):
            command.require_free(served)
    command.require_free(served)  # though the connection is still in TIME_WAIT


def test_the_order_favours_no_side() -> None:
    two = sides.stock_and_patched("all")
    assert [(turn, side.name) for turn, side in order(4, two)] == [
        *((1, "patched"), (1, "stock"), (2, "stock"), (2, "patched")),
        *((3, "patched"), (3, "stock"), (4, "stock"), (4, "patched")),
    ]


def test_a_side_has_variables_and_flags_of_its_own() -> None:
    texts = "SGLANG_PERF_PATCHES=none", "X=1 Y='2 3' --tp 2 --z=Q=1"
    a, b = sides.described(*texts, "mlx", LAUNCH)
    assert (a.selection, a.is_patched, a.needs_live) == ("none", False, False)
    assert (b.variables, b.flags) == ({"X": "1", "Y": "2 3"}, ("--tp", "2", "--z=Q=1"))
    assert (b.environment["SGLANG_PERF_PATCHES"], b.environment["Y"]) == ("mlx", "2 3")
    plain, named = sides.described(None, "SGLANG_PERF_PATCHES=mla --tp 4", "all", LAUNCH)
    assert (named.selection, named.flags, named.needs_live) == ("mla", ("--tp", "4"), True)
    assert (b.needs_live, plain.adds) == (False, "")
    assert [side.adds for side in (a, named)] == [
        *("SGLANG_PERF_PATCHES=none", "SGLANG_PERF_PATCHES=mla --tp 4")
    ]


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
    with pytest.raises(UsageError, match=said):
        sides.described(*texts, "all", LAUNCH)


def test_flags_do_not_go_to_the_end_of_a_script() -> None:
    with pytest.raises(UsageError, match="name the server itself"):
        sides.described(None, "--x", "all", ["sh", "-c", "exec serve"])
    assert sides.described(None, "X=1", "all", ["sh", "-c", "exec serve"])


def test_described_sides_are_named_everywhere() -> None:
    a, b = sides.described(None, "--dtype 'half'", "none", LAUNCH)
    described = made(sides=(a, b), live=[])
    assert outcome.conclusion(described).startswith("Better with b than with a: TPOT 30 % less")
    text = to_text(described)
    assert "a: SGLANG_PERF_PATCHES=none\nb: SGLANG_PERF_PATCHES=none --dtype half" in text
    assert re.search(r"^figure +unit +a +b +b is", text, re.MULTILINE)
    data = json.loads(outcome.to_json(described))
    assert [side["name"] for side in data["sides"]] == ["a", "b"]
    assert data["sides"][1]["adds"] == "SGLANG_PERF_PATCHES=none --dtype half"
    text = to_text(replace(described, live=made().live, live_in_first=made().live))
    assert "a: mlx.kv-arena: live in 3" in text
    assert "b: mlx.kv-arena: live in 3" in text


def test_tokens_are_compared_prompt_by_prompt() -> None:
    same = ((1, 2), (3,), (4,))
    other = ((1, 2), (9,), (4,))
    assert compare([same, same], [same, same]).word == "equal"
    different = compare([same, same], [same, other])
    assert (different.word, different.different) == ("different", (1,))
    # Where stock's own boots differ, a patched boot can't be told from stock.
    unsteady = compare([same, other], [other, same])
    assert (unsteady.word, unsteady.unsteady) == ("equal", 1)
    assert compare([same, other], [same, ((1, 2), (3,), (5,))]).different == (2,)
    assert compare([((1,),), ((2,),)], [((1,),), ((2,),)]).word == "unsteady"


def test_the_prompts_are_the_same_every_time_and_unequal() -> None:
    assert prompts() == prompts()
    assert len({tuple(prompt) for prompt in prompts()}) == len(prompts()) == 16
    assert len({len(prompt) for prompt in prompts()}) > 1


def made(**more: Any) -> Outcome:
    """An outcome of three turns with a gain."""
    changes = {
        "TPOT": noise.change([10.0, 10.2, 10.1], [7.0, 7.1, 7.05]),
        "throughput": noise.change([100.0, 101.0, 99.0], [140.0, 141.0, 139.0]),
        "TTFT": noise.change([50.0, 60.0, 55.0], [51.0, 58.0, 56.0]),
        "boot": noise.change([60.0, 61.0, 62.0], [60.5, 61.5, 60.0]),
    }
    boots = [
        {
            side: {name: getattr(change, side)[turn] for name, change in changes.items()}
            for side in ("stock", "patched")
        }
        for turn in range(3)
    ]
    base = Outcome(
        sglang="0.5.23",
        machine={"processor": "one"},
        model="tiny",
        command="serve <tiny>",
        repeat="sglang-perf-patches bench server -- serve '<tiny>'",
        load="--num-prompts 8",
        turns=3,
        changes=changes,
        tokens=compare([((1,),)] * 3, [((1,),)] * 3),
        live=[patches.LiveIn("mlx.kv-arena", "scheduler", 3, 3)],
        failed={},
        lost=[],
        stopped=None,
        boots=boots,
        sides=sides.stock_and_patched("mlx"),
        live_in_first=[],
    )
    return replace(base, **more)


def test_the_conclusion_names_what_is_beyond_the_noise() -> None:
    assert outcome.conclusion(made()) == (
        "Better with patches: TPOT 30 % less, throughput 40 % more. "
        "Nothing got worse beyond the noise."
    )
    assert outcome.exit_code(made()) == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"TTFT": noise.change([50.0, 51.0, 50.5], [60.0, 61.0, 60.5])},
            "Worse with patches: TTFT 20 % more.",
        ),
        (
            {"boot": noise.change([60.0, 61.0, 62.0], [60.5, 61.5, 60.0])},
            "No difference beyond the noise.",
        ),
    ],
)
def test_a_loss_and_noise_are_named_too(changes: dict[str, noise.Change], said: str) -> None:
    assert outcome.conclusion(made(changes=changes)) == said
    assert outcome.exit_code(made(changes=changes)) == 0


def test_the_conclusion_has_the_amount_of_each_figure() -> None:
    changes = {
        figure.name: noise.change([100.0, 101.0, 102.0], [50.0, 51.0, 52.0])
        for figure in outcome.FIGURES
        if figure.less_is_better
    }
    amounts = ", ".join(f"{name} 50 % less" for name in changes)
    conclusion = outcome.conclusion(made(changes=changes))
    assert conclusion.startswith(f"Better with patches: {amounts}. ")


@pytest.mark.parametrize(
    "more",
    [
        {"boots": made().boots[:1]},
        {"tokens": compare([((1,),)] * 3, [((2,),)] * 3)},
        {"lost": ["mlx.kv-arena"]},
        {"stopped": Stopped(3, "stock", "it crashed")},
    ],
)
def test_what_is_not_shown_is_exit_1(more: dict[str, Any]) -> None:
    assert outcome.exit_code(made(**more)) == 1


def test_amounts_are_for_people() -> None:
    def amount(*patched: float) -> str:
        return outcome.amount(noise.change([100.0] * len(patched), patched))

    assert amount(70.0, 75.0, 72.0) == "28 % less (-30 to -25)"
    assert amount(99.0, 103.0, 101.0) == "1 % more (-1 to +3)"
    assert amount(240.0, 250.0, 260.0) == "2.5 times (2.4 to 2.6)"
    assert amount(100.0, 100.0) == "the same"
    assert amount(100.2, 99.4, 100.1) == "0 % more (-1 to 0)"
    assert amount(80.0) == "20 % less"
    # The median boot takes less, and the median turn more.
    apart = noise.change([61.0, 60.0, 70.0], [61.6, 60.5, 60.0])
    assert outcome.amount(apart) == "unclear (-14 to +1 %)"
    assert spread([12.34, 1234.5, 0.5]) == "12.3 (0.500-1234)"


def test_the_text_has_figures_tokens_and_patches() -> None:
    text = to_text(made())
    assert re.search(r"TPOT +ms +10\.1 \(10\.0-10\.2\) +7\.05 .* 30 % less .* yes, better", text)
    assert re.search(r"TTFT +ms .* no$", text, re.MULTILINE)
    assert "greedy tokens: equal for 1 prompt in 6 boots" in text
    assert "mlx.kv-arena: live in 3 scheduler processes, run in 3" in text


def test_the_figures_are_at_most_100_columns_wide() -> None:
    """As wide as they come: long spreads, and amounts with signs."""
    sides = ([41_234.5, 70_812.5, 60_400.5], [72_200.5, 503_100.5, 97_600.5])
    change = noise.change(*sides)
    text = to_text(made(changes={"throughput": change, "TTFT p99": noise.change(*reversed(sides))}))
    assert max(map(len, text.splitlines())) <= 100
    assert "60400 (41234-70812)" in text
    narrow = to_text(made(changes={"throughput": change}), 80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert "60400 (41234-70812)" in narrow


def test_json_has_the_rule_and_the_conclusion() -> None:
    data = json.loads(outcome.to_json(made(stopped=Stopped(3, "stock", "it crashed"))))
    assert data["changes"]["throughput"]["less_is_better"] is False
    assert data["stopped"] == {"turn": 3, "side": "stock", "reason": "it crashed"}
    assert data["conclusion"].endswith("It stopped early: turn 3, stock: it crashed.")
    assert data["exit_code"] == 1


def test_processes_are_seen_alike_where_there_is_only_ps() -> None:
    """As on a Mac; this process and its parent, in both tables."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("there is no /proc to compare with")
    if not shutil.which("ps"):
        pytest.skip("there is no ps")
    by_ps = {process.pid: process for process in procfs.from_ps("-A")}
    ours = {process.pid: process for process in procfs.table()}[os.getpid()]
    theirs = by_ps[os.getpid()]
    assert procfs.from_ps("-p", str(os.getpid()))[0][:4] == theirs[:4]
    assert (theirs.parent, theirs.group) == (ours.parent, ours.group)
    assert theirs.born
    assert 0.5 < theirs.resident / ours.resident < 2
