"""Three real servers by turns: stock sglang, sglang with the set, and mlx_lm.server.

    python3 tests/benchmarks/mlx/beside.py --release 0.5.23 --turns 2

boots the servers of the release's environment on this CPU, each as often as there are turns, with
the same model and the same prompts, and sends each boot the same loads from 1, 4 and 16 clients:

- unique: prompts that have nothing in common;
- varied: the same, from half of their length to all of it;
- shared: prompts whose first half is the same;
- one-long: unique prompts, of which the first client's are ``--long`` words long;
- turns: conversations, each prompt being all that was said before and new words;
- thoughts: the same without the replies, as where a template drops what a model has thought.

A client of its own streams ``/v1/completions``, which all three have. It prints one line of JSON
for each load of each boot, then a table: of each boot tokens per second, the first token's median
and the processor's time for a token, which other work on a machine changes least; and what the
patched server said of its patches. MLX for CUDA compiles kernels at first use: ``--warm`` sends
each load once before, with other prompts and at most three turns. With ``--together`` the servers
boot at once, and each load goes to one after the other, while the others are idle. Stock serves
hybrids (``--shape hybrid``) only with ``--stock=--disable-radix-cache``. With ``--here`` it takes
this interpreter, on a Mac for example. `results/mlx.md` says what was measured.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
_HARNESS = _ROOT / "tests" / "harness"
sys.path[:0] = [str(_ROOT / "src"), str(_HARNESS)]

from linux_mlx.environments import sglang_environment  # noqa: E402
from linux_mlx.processes import last_lines, started  # noqa: E402
from linux_mlx.server import free_port  # noqa: E402

_SIDES = ("stock", "patched", "mlx-lm")
_READY_S = 600
_REPLY_S = 600
_ATTEMPTS = 50
_SAID = r"sglang-perf-patches: .+|mlx\.[a-z-]+(?::| runs) .+"
_PROCESSOR = "processor, ms a token"
_WORDS = 480  # the tiny model knows as many


@dataclass(frozen=True)
class Reply:
    """One request's: seconds to the first text and to the end, tokens, and the text."""

    first_s: float
    all_s: float
    tokens: int
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--here", action="store_true", help="this interpreter's packages")
    parser.add_argument("--shape", default="tiny", help="of random weights: see served.py")
    parser.add_argument("--selection", default="mlx", help="of the patched side")
    parser.add_argument("--sides", default=",".join(_SIDES))
    parser.add_argument("--stock", default="", help="further arguments of stock's server")
    parser.add_argument("--together", action="store_true", help="one boot of all sides at once")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--each", type=int, default=3, help="requests of a client")
    parser.add_argument("--words", type=int, default=192, help="of a prompt")
    parser.add_argument("--long", type=int, default=3000, help="words of a long prompt")
    parser.add_argument("--replies", type=int, default=32, help="tokens of a reply, at most")
    parser.add_argument("--said", type=int, default=3, help="turns of a conversation")
    parser.add_argument("--loads", default="unique,shared,turns")
    parser.add_argument("--slots", type=int, default=16_384, help="of sglang's pool, in tokens")
    parser.add_argument("--warm", action="store_true", help="send each load once before")
    given = parser.parse_args()
    # A server ends with the block that began it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="mlx-beside-") as scratch:
        _measure(given, Path(scratch))
    return 0


def _measure(given: argparse.Namespace, folder: Path) -> None:
    python = sys.executable if given.here else str(sglang_environment(given.release).python)
    model = str(folder / "model")
    code = "import sys; sys.path += sys.argv[3:]; from served import write; write(*sys.argv[1:3])"
    search = [str(Path(__file__).parent), str(_HARNESS)]
    words = [python, "-W", "ignore", "-c", code, model, given.shape, *search]
    subprocess.run(words, env=_variables("none"), check=True)
    sides = given.sides.split(",")
    rows: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    lines: dict[str, None] = {}
    for turn in range(given.turns):
        order = sides[:: -1 if turn % 2 else 1]
        for booted in [order] if given.together else [[side] for side in order]:
            for side, row in _boot(python, booted, model, given, folder / f"{turn}"):
                key = row["load"], row["clients"]
                rows.setdefault(key, {}).setdefault(side, []).append(row)
                print(json.dumps({"turn": turn, "side": side} | row), flush=True)
            if "patched" in booted:
                log = (folder / f"{turn}-patched.log").read_text(errors="replace")
                lines |= dict.fromkeys(re.findall(_SAID, log))
    for line in (*table(rows, sides), *lines):
        print(line)


def _boot(
    python: str, sides: Sequence[str], model: str, given: argparse.Namespace, logs: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each load's figures of one boot of each side; each load goes to one side after the other."""
    with ExitStack() as stack:

        def start(side: str) -> tuple[int, int]:
            log = logs.with_name(f"{logs.name}-{side}.log")
            return stack.enter_context(_server(python, side, model, given, log))

        with ThreadPoolExecutor(len(sides)) as pool:
            servers = dict(zip(sides, pool.map(start, sides), strict=True))
        loads = [*product(given.loads.split(","), map(int, given.clients.split(",")))]
        for port, _ in servers.values():
            _load(port, "unique", 2, 1, given, seed="warm up")
            for load, clients in loads if given.warm else ():
                _load(port, load, clients, 1, given, seed=f"warm up {load}{clients}")
        for (load, clients), (side, (port, group)) in product(loads, servers.items()):
            before = _processor_s(group)
            told = _load(port, load, clients, given.each, given, seed=f"{load}{clients}")
            spent = 1e3 * (_processor_s(group) - before) / max(told["tokens"], 1)
            row = {"load": load, "clients": clients, _PROCESSOR: round(spent, 2)}
            yield side, row | told


def table(
    found: dict[tuple[str, int], dict[str, list[dict[str, Any]]]], sides: Sequence[str]
) -> Iterator[str]:
    """Lines of Markdown: a row for each load and number of clients."""
    figures = ("tokens per second", "first token, ms", _PROCESSOR)
    heads = [f"{side}, {figure}" for figure in figures for side in sides]
    others = [side for side in sides if side != "patched"] if "patched" in sides else []
    heads += [f"patched : {side}" for side in others] + ["replies, to stock's"]
    yield f"| load | clients | {' | '.join(heads)} |"
    yield f"| --- {'| --- ' * (len(heads) + 1)}|"
    for (load, clients), by_side in found.items():
        cells = [load, str(clients)]
        for figure in figures:
            cells += [", ".join(str(row[figure]) for row in by_side[side]) for side in sides]
        for side in others:
            speeds = [
                statistics.median(row["tokens per second"] for row in by_side[each])
                for each in ("patched", side)
            ]
            cells.append(f"{speeds[0] / speeds[1]:.2f}")
        replies = {row["replies"] for side in sides if side != "mlx-lm" for row in by_side[side]}
        yield f"| {' | '.join([*cells, 'equal' if len(replies) == 1 else 'different'])} |"


def _load(
    port: int, load: str, clients: int, each: int, given: argparse.Namespace, *, seed: str
) -> dict[str, Any]:
    """The figures of one load: every client sends its requests one after the other."""
    common = _words(f"common {seed}", given.words // 2)
    talks = load in ("turns", "thoughts")
    turns = min(given.said, 3) if seed.startswith("warm up") else given.said

    def client(number: int) -> list[Reply]:
        replies, conversation = [], ""
        for request in range(turns if talks else each):
            is_long = load == "one-long" and not number
            new = _words(f"{seed} {number} {request}", given.long if is_long else given.words)
            if load == "shared":
                new[: len(common)] = common
            if load == "varied":
                new = new[random.Random(new[0] + seed).randint(0, len(new) // 2) :]
            if not talks:
                replies.append(_asked(port, " ".join(new), given))
                continue
            new = new[: len(new) if not request else len(new) // 4]
            conversation = " ".join([*filter(None, [conversation]), *new])
            replies.append(_asked(port, conversation, given))
            if load == "turns":
                conversation = f"{conversation} {replies[-1].text.strip()}"
        return replies

    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        by_client = list(pool.map(client, range(clients)))
    taken = time.perf_counter() - began
    replies = [reply for of in by_client for reply in of]
    firsts = sorted(1e3 * reply.first_s for reply in replies)
    steps = [
        1e3 * (reply.all_s - reply.first_s) / (reply.tokens - 1)
        for reply in replies
        if reply.tokens > 1
    ]
    text = json.dumps([reply.text.split() for reply in replies])  # mlx-lm has other spaces
    firsts_by_turn = [
        round(1e3 * statistics.median(reply.first_s for reply in of), 1)
        for of in zip(*by_client, strict=True)
    ]
    return {
        "tokens per second": round(sum(reply.tokens for reply in replies) / taken, 1),
        "first token, ms": round(statistics.median(firsts), 1),
        "first token, 99th, ms": round(firsts[-1 - len(firsts) // 100], 1),
        "a token, ms": round(statistics.median(steps), 2) if steps else None,
        "tokens": sum(reply.tokens for reply in replies),
        "replies": hashlib.sha256(text.encode()).hexdigest()[:12],
    } | ({"first token by turn, ms": firsts_by_turn} if talks else {})


def _words(seed: str, count: int) -> list[str]:
    chance = random.Random(seed)
    return [f"w{chance.randrange(_WORDS)}" for _ in range(count)]


def _asked(port: int, prompt: str, given: argparse.Namespace) -> Reply:
    """Stream one reply; a RuntimeError if the server refuses."""
    body = {"model": "default_model", "prompt": prompt, "max_tokens": given.replies}
    body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"ignore_eos": True}  # mlx_lm.server has no such option; the random models say none
    began = time.perf_counter()
    for attempt in range(_ATTEMPTS):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_REPLY_S)
        try:
            connection.request(
                *("POST", "/v1/completions", json.dumps(body)), {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            break
        except ConnectionError:  # mlx_lm.server keeps at most five connections waiting
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(0.02)
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.read(400).decode(errors='replace')}")
    first, tokens, text = 0.0, 0, ""
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        told = json.loads(line[6:])
        piece = "".join(choice.get("text") or "" for choice in told.get("choices") or ())
        if piece and not first:
            first = time.perf_counter() - began
        text += piece
        if told.get("usage"):
            tokens = int(told["usage"]["completion_tokens"])
    connection.close()
    taken = time.perf_counter() - began
    return Reply(first or taken, taken, tokens, text)


@contextmanager
def _server(
    python: str, side: str, model: str, given: argparse.Namespace, log: Path
) -> Iterator[tuple[int, int]]:
    """The port and the process group of a server that answers; the group ends with the block."""
    port = free_port()
    where = ["--host", "127.0.0.1", "--port", str(port)]
    if side == "mlx-lm":
        command = [python, "-W", "ignore", "-m", "mlx_lm.server", "--model", model, *where]
    else:
        run = [python, "-W", "ignore", "-m", "sglang_perf_patches", "run", python, "-W", "ignore"]
        command = [*run, "-m", "sglang.launch_server", "--model-path", model]
        command += ["--served-model-name", "default_model", *where]
        command += ["--max-total-tokens", str(given.slots)]
        command += given.stock.split() if side == "stock" else []
        if platform.system() != "Darwin":
            command += ["--device", "cpu"]
    variables = _variables(given.selection if side == "patched" else "none")
    with started(command, variables=variables, log=log) as process:
        _wait(port, process, log)
        yield port, process.pid


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(4 * _READY_S):
        if process.poll() is not None:
            break
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.25)
    raise RuntimeError(f"the server does not answer; it said:\n{last_lines(log)}")


def _processor_s(group: int) -> float:
    """Seconds of the processor that a group's running processes have used."""
    if not Path("/proc/self/stat").exists():
        told = subprocess.run(["ps", "-A", "-o", "pgid=,time="], capture_output=True, text=True)
        rows = (line.split() for line in told.stdout.splitlines())
        return sum(_seconds(row[1]) for row in rows if len(row) == 2 and row[0] == str(group))
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name may contain any character; the fields follow the last parenthesis.
            fields = stat.read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:13])) if fields[2] == str(group) else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def _seconds(text: str) -> float:
    """Seconds in a time of ps: ``DD-HH:MM:SS``, or its end."""
    parts = [float(part) for part in re.split("[-:]", text)]
    return sum(part * unit for part, unit in zip(parts[::-1], (1, 60, 3600, 86400), strict=False))


def _variables(selection: str) -> dict[str, str]:
    """This process's variables, and where the package and what a Linux machine lacks are."""
    search = [str(_ROOT / "src"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if platform.system() != "Darwin":
        search.insert(0, str(_HARNESS / "linux_mlx" / "shims"))
    told = {"SGLANG_USE_MLX": "1", "SGLANG_PERF_PATCHES": selection, "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **told, "PYTHONPATH": os.pathsep.join(search), "PYTHONUNBUFFERED": "1"}


if __name__ == "__main__":
    sys.exit(main())
