"""Known faults of MLX servers with dense models, on stock and with the patch for one of them."""

from pathlib import Path
from random import Random

import pytest

from linux_mlx.completions import post
from linux_mlx.patches import live_and_run
from linux_mlx.processes import Failure
from linux_mlx.server import running_server
from tests.server.test_mlx_hybrid import ON_LINUX, POLICIES, Asked, body, prepared, words

PATCH = "mlx.released-rows"

pytestmark = [ON_LINUX, pytest.mark.whole_matrix]  # a server each


@pytest.mark.parametrize(
    ("release", "arguments", "selection", "is_overwritten"),
    [
        # Up to 0.5.17 the row that was free for longest comes next, from 0.5.18 on the last one.
        ("0.5.17", "--max-running-requests 1", "none", True),
        ("0.5.17", "--max-running-requests 1", PATCH, False),
        ("0.5.17", "", "none", False),
        ("0.5.18", "", "none", True),
        ("0.5.18", "", PATCH, False),
        ("0.5.19", "", "mlx", False),
        ("0.5.20", "--disable-overlap-schedule", "none", True),
        ("0.5.20", "--disable-overlap-schedule", PATCH, False),
        ("0.5.20", "", POLICIES, False),
        ("0.5.22", "", "none", False),
    ],
)
def test_a_reply_is_written_over_a_cached_prefix(
    release: str, arguments: str, selection: str, is_overwritten: bool, tmp_path: Path
) -> None:
    environment, model = prepared(release, tmp_path, "dense")
    chance = Random(51)
    long, short = Asked(words(chance, 100), 4), Asked(words(chance, 20), 40)
    with running_server(
        environment, model, selection=selection, log=tmp_path / "log", arguments=arguments.split()
    ) as server:
        said = [post(server.url, "/generate", body(each)) for each in (long, short, long, long)]
        if selection != "none":
            assert PATCH in live_and_run(server, patience_s=15)
    assert [each["meta_info"]["cached_tokens"] for each in said] == [0, 0, 99, 99]
    first, _, *again = (each["output_ids"] for each in said)
    assert (again[-1] != first) is is_overwritten


def test_no_model_starts_on_0_5_21(tmp_path: Path) -> None:
    environment, model = prepared("0.5.21", tmp_path, "dense")
    with (
        pytest.raises(Failure, match="no attribute 'kv_cache_configurator'"),
        running_server(environment, model, selection="none", log=tmp_path / "log"),
    ):
        pass
