"""``mlx.next-turn``: a flush of the cache reaches the turns, and tenants don't share them."""

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from linux_mlx.completions import post
from linux_mlx.environments import install_checkout, sglang_environment
from linux_mlx.patches import live_and_run
from linux_mlx.server import Server, running_server, write_model

_SOURCE = Path(__file__).parents[2] / "src"
_RECORD_S = 3.0  # a record is written once a second


@pytest.mark.parametrize("release", ["0.5.22", "0.5.23"])
def test_who_continues_a_turn(found: Any, release: str) -> None:
    of = found(release, "whose_turn")
    assert of["same prefix in the radix cache"] == 1
    assert of["not in the radix cache"] == 0
    assert of["in other slots"] == 0
    assert of["after a flush"] == 0
    for shared in (1, 11):
        assert of[f"of another with {shared} tokens"] == 0
        assert of[f"next to one with {shared} tokens"] == 1
    # K and V of a turn of 256 tokens, 2 heads of 32, in 2 layers without a window in float32.
    assert of["freed by a flush"] >= 2 * 256 * 2 * 32 * 2 * 4
    assert of["off with a turn kept"] is True
    assert of["freed when taken off"] >= 2 * 256 * 2 * 32 * 2 * 4
    assert of["of stock when taken off"] is True
    assert of["ended, and not removed yet"] == 1
    assert of["running after that"] == ["b", "x"]


def test_kept_turns_hold_what_they_count(found: Any) -> None:
    """A copy out of a batch's buffers that is not evaluated would hold all of them."""
    of = found("0.5.23", "kept_turns")
    assert of["turns"] == 8
    assert of["held"] <= of["counted"] + (512 << 10)


@pytest.mark.whole_matrix  # a server
def test_a_flush_and_another_tenant_in_a_real_server(found: Any, tmp_path: Path) -> None:
    environment = sglang_environment("0.5.23")
    install_checkout(environment)
    model = write_model(environment, tmp_path)
    found("0.5.23", "give_windows", FOLDER=str(model))
    words, others = Random(1), Random(2)
    with running_server(
        environment,
        model,
        selection="mlx.next-turn",
        log=tmp_path / "log",
        launcher=(environment.python, "-m", "sglang_perf_patches", "run"),
        python_path=(_SOURCE,),
    ) as server:

        def say(tokens: list[int], tenant: str) -> None:
            _generate(server, tokens, tenant)
            # Stock removes a finished request only when another one decodes.
            _generate(server, _words(others, 9), "other")

        def has_continued() -> bool:
            time.sleep(_RECORD_S)
            return "mlx.next-turn" in live_and_run(server, patience_s=0)

        salted = _words(words, 90)
        _complete(server, salted, "a")
        _generate(server, _words(others, 9), "other")
        _complete(server, salted + _words(words, 40), "b")
        assert not has_continued()
        first = _words(words, 90)
        say(first, "a")
        say(first + _words(words, 40), "b")
        assert not has_continued()
        assert post(server.url, "/flush_cache", None).startswith("Cache flushed")
        again = first + _words(words, 40)
        # Nobody else decodes meanwhile: a conversation may have the server for itself.
        _generate(server, again, "a")
        assert not has_continued()
        _generate(server, again + _words(words, 40), "a")
        assert has_continued()


def _words(chance: Random, count: int) -> list[int]:
    return [chance.randrange(3, 200) for _ in range(count)]


def _generate(server: Server, tokens: list[int], tenant: str) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    asked = {"input_ids": tokens, "sampling_params": sampling, "extra_key": tenant}
    post(server.url, "/generate", asked)


def _complete(server: Server, tokens: list[int], salt: str) -> None:
    """The same through OpenAI's interface, where a tenant gives a salt."""
    asked = {"model": "tiny", "prompt": tokens, "max_tokens": 4, "temperature": 0}
    post(server.url, "/v1/completions", {**asked, "ignore_eos": True, "cache_salt": salt})
