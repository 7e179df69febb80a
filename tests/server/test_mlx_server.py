"""A stock server of the newest release: patched, it replies as it does without, and says so."""

import re
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from linux_mlx.completions import post, workload
from linux_mlx.processes import members
from linux_mlx.server import running_server
from mlx_server_on_cpu import Outcome, _print_verdict, serve, what_is_wrong
from tests.server.test_mlx_hybrid import ON_LINUX, prepared

pytestmark = ON_LINUX

_REQUESTS = workload(8)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("server")
    environment, model = prepared("0.5.23", folder, "dense")
    return {
        selection: serve(
            environment, model, _REQUESTS, selection=selection, log=folder / f"{selection}.log"
        )
        for selection in ("mlx", "none")
    }


def test_the_replies_are_complete_and_those_of_stock(outcomes: dict[str, Outcome]) -> None:
    replies = outcomes["mlx"].replies
    assert replies == outcomes["none"].replies
    assert [len(reply.split()) for reply in replies] == [
        request.max_tokens for request in _REQUESTS
    ]
    assert len(set(replies)) == len(_REQUESTS)


def test_requests_were_decoded_together(outcomes: dict[str, Outcome]) -> None:
    for outcome in outcomes.values():
        assert outcome.most_decoded_together >= 2


def test_the_scheduler_says_that_patches_are_live_and_ran(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["mlx"].live_and_run
    assert all(patch.startswith("mlx.") for patch in outcomes["mlx"].live_and_run)
    assert outcomes["none"].live_and_run == []


def test_no_process_is_left(outcomes: dict[str, Outcome]) -> None:
    for outcome in outcomes.values():
        assert members(outcome.group) == []


def test_the_example_gives_no_speed_of_single_runs(capsys: pytest.CaptureFixture[str]) -> None:
    _print_verdict([], Outcome(["one"], 2, ["mlx.some"], 0))
    said = capsys.readouterr().out
    assert "OK: 0 replies are equal" in said
    assert "add --bench" in said
    assert not re.search(r"tokens per second|\d times", said)


@pytest.mark.whole_matrix  # a server each
@pytest.mark.parametrize("switch", ["", "--mlx-enable-sampling"])
def test_logprobs_need_the_switch_that_the_readme_names(switch: str, tmp_path: Path) -> None:
    """With it, stock's scheduler dies once such a request is retracted (`faults.known`)."""
    environment, model = prepared("0.5.23", tmp_path, "dense")
    log = tmp_path / "log"
    asked = {"input_ids": [5, 6, 7], "return_logprob": True}
    few, many = (
        asked | {"sampling_params": {"max_new_tokens": count, "ignore_eos": True}}
        for count in (3, 4000)
    )

    def decoded() -> int:
        return log.read_text().count("Decode batch")

    with running_server(
        environment, model, selection="none", log=log, arguments=switch.split()
    ) as server:
        if switch:
            reply = post(server.url, "/generate", few)
            assert reply["meta_info"]["output_token_logprobs"]
        with ThreadPoolExecutor(1) as executor:
            before = decoded()
            replied = executor.submit(post, server.url, "/generate", many if switch else few)
            if switch:
                while decoded() < before + 3 and not replied.done():
                    time.sleep(0.1)
                post(server.url, "/pause_generation", {"mode": "retract"})
                post(server.url, "/continue_generation", {})
            with pytest.raises((urllib.error.URLError, ConnectionError)):
                replied.result()
    if switch:
        assert "assert output.input_token_logprobs is not None" in log.read_text()
        return
    assert "in _normalize_decode_outputs" in log.read_text()
    assert "'NoneType' object has no attribute 'tolist'" in log.read_text()


def test_the_example_tells_what_is_wrong() -> None:
    good = Outcome(["one", "two"], 2, ["mlx.some"], 0)
    stock = replace(good, live_and_run=[])
    assert what_is_wrong(good, stock) is None
    assert what_is_wrong(replace(good, replies=["one", "2"]), stock) == (
        "the replies to 1 of 2 requests differ: [1]"
    )
    assert what_is_wrong(stock, stock) == "no patch was live in the scheduler and had run"
    assert what_is_wrong(good, good) == "with patches off, mlx.some was live"
    assert what_is_wrong(replace(good, most_decoded_together=1), stock) == (
        "no two requests were decoded together"
    )
