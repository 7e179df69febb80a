"""A hybrid model on MLX with default arguments: stock dies, and a patched server serves it.

Its replies are those of stock without a radix cache, the only way in which stock serves it. When a
server is idle, stock itself raises unless each token and each state is free or in the cache.
"""

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from linux_mlx.completions import post
from linux_mlx.environments import Environment, install_checkout, sglang_environment
from linux_mlx.patches import live_and_run, processes
from linux_mlx.processes import Failure
from linux_mlx.server import Server, running_server, write_model
from linux_mlx.tiny_model import IMAGE

ON_LINUX = pytest.mark.skipif("sys.platform != 'linux'", reason="the shims are for Linux")
# Two servers each; the default tier's is `test_mlx_server`'s.
pytestmark = [ON_LINUX, pytest.mark.whole_matrix]

EACH = pytest.mark.parametrize(
    "release",
    ["0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.22", "0.5.23"],  # on 0.5.21 no model starts
)
MODELS = pytest.mark.parametrize("kind", ["hybrid", "qwen3.5"])
"""Qwen3.5 has the layers of the other one, and takes images."""
DIES = {"0.5.22": "extra_buffer requires platform support", "0.5.23": "extra_buffer requires"}
DEFAULTS = "mlx.hybrid-cache,mlx.hybrid-defaults"
POLICIES = "mlx,mlx.length-groups,mlx.next-turn,mlx.batched-prefill"
QUANTISED = ("--quantization", "mlx_q4")
WAVES = 50
LONG = 4500  # more than a chunk
STATE_LAYERS = 2
RED, GREEN = b"\xff\0\0", b"\0\xff\0"


@dataclass(frozen=True)
class Asked:
    """A request: its tokens, how many to generate, whose it is, and the colour of its image."""

    tokens: tuple[int, ...]
    count: int
    tenant: str = ""
    colour: bytes = b""


@dataclass
class Talk:
    """What a server was asked and replied: request → the tokens of its reply."""

    server: Server
    takes_images: bool = False
    replies: dict[Asked, tuple[int, ...]] = field(default_factory=dict)

    def ask(self, asked: Asked) -> int:
        """Generate; how many tokens of the prompt were cached. A repeated reply is the same."""
        said = post(self.server.url, "/generate", body(asked))
        reply = tuple(said["output_ids"])
        assert self.replies.setdefault(asked, reply) == reply, "the same request, another reply"
        return int(said["meta_info"]["cached_tokens"])

    def ask_together(self, asked: Sequence[Asked]) -> list[int]:
        with ThreadPoolExecutor(len(asked)) as executor:
            return list(executor.map(self.ask, asked))


@MODELS
@EACH
def test_a_hybrid_serves_with_its_prefixes(release: str, kind: str, tmp_path: Path) -> None:
    environment, model = prepared(release, tmp_path, kind)
    with serving(environment, model, "mlx", tmp_path) as server:
        # Before 0.5.22 stock tokenizes a prompt with an image again, which needs a real tokenizer.
        talk = Talk(server, kind == "qwen3.5" and release in ("0.5.22", "0.5.23"))
        found = prefixes_are_found(talk, Random(51))
        # The runner went on from a state, and did not compute the prompt again.
        assert server.log.read_text().count("restored\n") == found * STATE_LAYERS
        if talk.takes_images:
            images_are_tokens(talk, Random(35))
        random_requests(talk, Random(release))
        assert len(talk.replies) >= 3 * WAVES
        ran = live_and_run(server, patience_s=15)
        assert {"mlx.hybrid-cache", "mlx.kv-arena"} <= set(ran)
        assert live(server) <= {*ran, "mlx.hybrid-defaults"}  # that one runs in the launcher
        is_whole(talk)
    replies_are_stocks(environment, model, talk, tmp_path)


@MODELS
@EACH
def test_stock_dies(release: str, kind: str, tmp_path: Path) -> None:
    environment, model = prepared(release, tmp_path, kind)
    with (
        pytest.raises(Failure, match=DIES.get(release, "extra_buffer needs")),
        serving(environment, model, "none", tmp_path),
    ):
        pass


@MODELS
@pytest.mark.parametrize(
    "arguments",
    [
        "--chunked-prefill-size 64 --enable-mixed-chunk --max-mamba-cache-size 16",
        "--chunked-prefill-size -1 --mlx-enable-sampling",
    ],
)
def test_with_every_patch_of_the_set(arguments: str, kind: str, tmp_path: Path) -> None:
    """Few slots, small chunks, mixed with decodes; and what else the patch declares."""
    environment, model = prepared("0.5.23", tmp_path, kind)
    with serving(environment, model, POLICIES, tmp_path, *arguments.split()) as server:
        talk = Talk(server, kind == "qwen3.5")
        random_requests(talk, Random(5))
        assert "mlx.hybrid-cache" in live_and_run(server, patience_s=15)
        is_whole(talk)
    replies_are_stocks(environment, model, talk, tmp_path)


@pytest.mark.parametrize(
    ("release", "kind"), [("0.5.17", "hybrid"), ("0.5.23", "hybrid"), ("0.5.23", "qwen3.5")]
)
def test_weights_quantised_by_an_argument(release: str, kind: str, tmp_path: Path) -> None:
    environment, model = prepared(release, tmp_path, kind)
    with serving(environment, model, "mlx", tmp_path, *QUANTISED) as server:
        talk = Talk(server)
        prefixes_are_found(talk, Random(51))
        random_requests(talk, Random(release))
        ran = live_and_run(server, patience_s=15)
        assert {"mlx.hybrid-cache", "mlx.kv-arena"} <= set(ran)
        assert {*ran, "mlx.hybrid-defaults"} >= live(server) >= {"mlx.hybrid-defaults"}
        assert "Quantization complete" in server.log.read_text()
        is_whole(talk)
    replies_are_stocks(environment, model, talk, tmp_path, *QUANTISED)


def test_states_take_no_more_than_they_may(tmp_path: Path) -> None:
    environment, model = prepared("0.5.23", tmp_path)
    chance = Random(7)
    with serving(environment, model, DEFAULTS, tmp_path, HYBRID_BYTES="400000") as server:
        talk = Talk(server)
        first, *others = (Asked(words(chance, 100), 2) for _ in range(20))
        for asked in (first, *others):
            assert talk.ask(asked) == 0
        # Two states a prompt, each of 39 kB, are in 400 kB for the last five prompts.
        assert talk.ask(others[-1]) == 64
        assert talk.ask(others[-4]) == 64
        assert talk.ask(first) == 0


def prefixes_are_found(talk: Talk, chance: Random) -> int:
    """How many prompts the cache had a part of; it keeps a state at each 64th new token."""
    again = Asked(words(chance, 300), 2)
    turn = Asked(words(chance, 180), 32)
    dropped = Asked(words(chance, 200), 8)
    system = words(chance, 260)
    first = Asked(system + words(chance, 26), 4)
    assert talk.ask_together([again, turn, dropped, first]) == [0, 0, 0, 0]
    more = words(chance, 40)
    assert talk.ask(again) == 256
    assert talk.ask(Asked(turn.tokens + talk.replies[turn] + more, 4)) == 180 + 31
    assert talk.ask(Asked(dropped.tokens + more, 4)) == 192
    assert talk.ask(Asked(system + words(chance, 26), 4)) == 256
    other = Asked(again.tokens, 2, "other")
    assert talk.ask(other) == 0
    assert talk.ask(other) == 256
    return 5


def images_are_tokens(talk: Talk, chance: Random) -> None:
    """MLX's runner gets the tokens of an image and not what it shows, so any image is a hit."""
    tokens = words(chance, 20) + IMAGE + words(chance, 100)
    red, green = (Asked(tokens, 8, "", colour) for colour in (RED, GREEN))
    assert talk.ask(red) == 0
    assert talk.ask(green) == 64
    assert talk.replies[red] == talk.replies[green]


def random_requests(talk: Talk, chance: Random) -> None:
    """Four at once, of new prompts and of what continues earlier ones; some are aborted."""
    system = words(chance, 150)
    for wave in range(WAVES):
        asked = [_next(talk, chance, system) for _ in range(3 if wave % 5 == 0 else 4)]
        if wave == WAVES // 2:
            assert "Cache flushed" in post(talk.server.url, "/flush_cache", None)
            asked.append(Asked(words(chance, LONG), 4))
        if wave % 5:
            talk.ask_together(asked)
            continue
        aborted = Asked(words(chance, 100), 4000)
        with ThreadPoolExecutor(1) as executor:
            ended = executor.submit(
                post, talk.server.url, "/generate", body(aborted) | {"rid": "x"}
            )
            talk.ask_together(asked)
            post(talk.server.url, "/abort_request", {"rid": "x"})
            assert ended.result()["meta_info"]["finish_reason"]["type"] == "abort"
        talk.ask(Asked(aborted.tokens + words(chance, 9), 4))


def _next(talk: Talk, chance: Random, system: tuple[int, ...]) -> Asked:
    count, tenant = chance.randint(1, 12), chance.choice(("", "", "", "other"))
    if talk.takes_images and not chance.randrange(5):
        tokens = system + IMAGE + words(chance, chance.randint(1, 60))
        return Asked(tokens, count, tenant, chance.choice((RED, GREEN)))
    kind = chance.choice(("new", "new", "system", "again", "turn", "turn", "dropped"))
    earlier = [each for each in talk.replies if len(each.tokens) < 500]
    if kind == "system" or not earlier:
        return Asked(system + words(chance, chance.randint(1, 60)), count, tenant)
    if kind == "new":
        return Asked(words(chance, chance.randint(1, 250)), count, tenant)
    before = chance.choice(earlier)
    if kind == "again":
        return before
    reply = talk.replies[before] if kind == "turn" else ()
    tokens = before.tokens + reply + words(chance, chance.randint(1, 60))
    return Asked(tokens, count, tenant, before.colour)


def is_whole(talk: Talk) -> None:
    """Nothing is left in the pools: else stock refuses the flush, or raises when it is idle."""
    assert "Cache flushed" in post(talk.server.url, "/flush_cache", None)
    asked = next(iter(talk.replies))
    assert talk.ask(asked) == 0
    assert "leak" not in talk.server.log.read_text()


def replies_are_stocks(
    environment: Environment, model: Path, talk: Talk, folder: Path, *arguments: str
) -> None:
    """Ask stock without a radix cache the same; the oldest releases serve only with the patches."""
    is_old = any(each in environment.folder.name for each in ("0.5.17", "0.5.18"))
    selection = DEFAULTS if is_old else "none"
    arguments = ("--disable-radix-cache", *arguments)
    with serving(environment, model, selection, folder, *arguments) as server:
        stock = Talk(server)
        asked = list(talk.replies)
        for at in range(0, len(asked), 8):
            stock.ask_together(asked[at : at + 8])
    different = [each for each in asked if stock.replies[each] != talk.replies[each]]
    assert not different, f"{len(different)} of {len(asked)}"


def prepared(release: str, folder: Path, kind: str = "hybrid") -> tuple[Environment, Path]:
    environment = sglang_environment(release)
    install_checkout(environment)
    return environment, write_model(environment, folder, kind)


def live(server: Server) -> set[str]:
    patches = [
        patch
        for process in processes(server)
        if "scheduler" in process["role"]
        for patch in process["patches"]
    ]
    assert not [patch for patch in patches if patch["state"] == "gated"]
    return {str(patch["id"]) for patch in patches if patch["state"] == "live"}


@contextmanager
def serving(
    environment: Environment,
    model: Path,
    selection: str,
    folder: Path,
    *arguments: str,
    **settings: str,
) -> Iterator[Server]:
    plugin = folder / "hybrid_probe-1.dist-info"
    plugin.mkdir(exist_ok=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: hybrid-probe\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text("[sglang.srt.plugins]\nprobe = hybrid_probe:load\n")
    with running_server(
        environment,
        model,
        selection=selection,
        log=folder / f"{len(arguments)}-{selection}.log",
        arguments=arguments,
        settings=settings,
        python_path=(folder, Path(__file__).parent),
    ) as server:
        yield server


def body(asked: Asked) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": asked.count, "ignore_eos": True}
    tenant = {"extra_key": asked.tenant} if asked.tenant else {}
    image = {"image_data": png(asked.colour)} if asked.colour else {}
    return {"input_ids": list(asked.tokens), "sampling_params": sampling, **tenant, **image}


def png(colour: bytes, side: int = 64) -> str:
    size = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + colour * side) * side)
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", size), (b"IDAT", rows), (b"IEND", b""))
    )
    return b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


def words(chance: Random, count: int) -> tuple[int, ...]:
    return tuple(chance.randrange(3, 500) for _ in range(count))
