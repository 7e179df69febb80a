"""Sends concurrent requests of unequal lengths to the server's OpenAI-compatible API."""

import json
import random
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from linux_mlx.patience import limit_s
from linux_mlx.tiny_model import WORDS

_SHARED_PREFIX = 48


@dataclass(frozen=True)
class Completion:
    """One request: a prompt, and the number of tokens to generate."""

    prompt: str
    max_tokens: int


def workload(count: int) -> list[Completion]:
    """Always the same requests; a third share a prefix, which the radix cache can match."""
    chosen = random.Random(count)
    prefix = chosen.choices(WORDS, k=_SHARED_PREFIX)
    completions = []
    for number in range(count):
        words = chosen.choices(WORDS, k=chosen.randint(4, 160))
        prompt = " ".join([*(prefix if number % 3 == 0 else []), *words])
        completions.append(Completion(prompt, max_tokens=chosen.randint(24, 120)))
    return completions


def complete(url: str, completions: Sequence[Completion]) -> list[str]:
    """Send all at once, greedy and with exact reply lengths; the replies, in request order."""
    executor = ThreadPoolExecutor(max_workers=len(completions))
    try:
        return list(executor.map(lambda completion: _reply(url, completion), completions))
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _reply(url: str, completion: Completion) -> str:
    body = {
        "model": "tiny",
        "prompt": completion.prompt,
        "max_tokens": completion.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    text: str = post(url, "/v1/completions", body)["choices"][0]["text"]
    return text


def post(url: str, path: str, content: Any) -> Any:
    """What the server replies: JSON if it is that, else text."""
    request = urllib.request.Request(
        url + path,
        data=json.dumps(content).encode() if content is not None else b"",
        headers={"Content-Type": "application/json"},
    )
    # A proxy from the user's environment would not reach this machine's loopback.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=limit_s()) as response:
        text = response.read().decode()
    return json.loads(text) if text.startswith("{") else text
