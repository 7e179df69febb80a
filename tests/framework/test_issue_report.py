"""``report``: what it holds, and what it must never hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from throwaway import Throwaway

import few_flags
from sglang_perf_patches import sets
from sglang_perf_patches.bench_server import flags, public
from sglang_perf_patches.cli.verbs import reporting
from sglang_perf_patches.model.patch import by_id

SERVER = """
import sys, time
from throwaway_patches import *
import sglang_perf_patches as ours
use(STEP)
import sglang.srt.a
ours.activate()
print("up", flush=True)
time.sleep(600)
"""


PRIVATE = (
    "/home/alice/models/secret",
    "/srv/my models/secret 7b",
    r"\\\\filer\\models\\secret",
    "alice@gpu-17",
    "gpu-17.cluster.acme.example",
    "fe80::1ff:fe23:4567:890a",
    "10.1.2.3:30000",
    "hf_abcdefghijklmnop",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "secret7b",
    "scheduler_for_acme.py",
    "0.5.23+acme.1",
    "\x1b[31m",
)
CANARY = "Zq7"


@pytest.fixture(scope="module", autouse=True)
def known_flags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The flags of an installed release."""
    known = few_flags.of(tmp_path_factory.mktemp("release") / "sglang")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flags, "installed", lambda: known)
        yield


def shown(said: str) -> dict[str, Any]:
    """What is shown of a process that has a text in each place that can hold one."""
    patch = {"id": said, "state": said, "reason": said, "ran": said}
    failed = {**patch, "id": "mlx.kv-arena", "reason": f"RuntimeError: {said}"}
    record = {
        "pid": 7,
        "server": 6,
        "role": said,
        "sglang": said,
        "started": said,
        "selection": f"all,{said}",
        "patches": [patch, failed],
        said: said,
    }
    return reporting.process(
        record, ["python", said, "--dtype", "half", said, f"--tp={said}", f"--{said}", said]
    )


@pytest.mark.parametrize("private", PRIVATE)
def test_what_is_private_is_nowhere(private: str) -> None:
    text = json.dumps(shown(private), ensure_ascii=False)
    assert private not in text
    assert max(private.split(), key=len) not in text


@given(
    st.text(max_size=20),
    st.text(max_size=20),
    st.sampled_from(("{}", "half {}", "0.5.9+{}", "scheduler_{}", "A {} H200", "1 {}", "{}.1")),
)
@settings(max_examples=150, deadline=None)
def test_no_text_comes_through_anywhere(before: str, after: str, around: str) -> None:
    text = json.dumps(shown(around.format(before + CANARY + after)), ensure_ascii=False)
    assert CANARY not in text


def test_of_a_reason_the_names_stay() -> None:
    (reference, *_) = by_id(sets.load())["mlx.kv-arena"].references()
    reasons = {
        f"{reference} is not the code we know (nearest known release: 0.5.22)": [
            *(reference, "0.5.22")
        ],
        "it needs mlx.kv-arena, which is failed": ["mlx.kv-arena"],
        "tensor parallelism is on (--tp-size): this patch was not tested with that": ["--tp-size"],
        "secret7b is on (--secret7b)": [],
        "ImportError: no secret7b here; ImportError": ["ImportError"],
    }
    assert {reason: public.named(reason) for reason in reasons} == reasons


def test_versions_and_selections() -> None:
    assert [public.version(text) for text in ("0.5.10.post1", "2.9.1+cu128", "1.0+acme")] == [
        *("0.5.10.post1", "2.9.1+cu128", "1.0+...")
    ]
    assert public.version("10.1.2.3") == "other"
    assert public.selection("all,-mla,mlx.kv-arena,acme") == "all,-mla,mlx.kv-arena,other"


def test_a_command_without_what_its_values_tell() -> None:
    command = ["/opt/me/python", "-m", "sglang.launch_server", "--model-path", "me/secret-7b"]
    command += ["--tp", "8", "--api-key", "12345", "--host=0.0.0.0", "--trust-remote-code"]
    command += ["--attention-backend", "triton", "--attention-backend=/tmp/x y", "--dtype=bfloat16"]
    command += ["--lora-paths", "a=b", "c=d", "--random-seed", "-1", "--dtype", "half", "secret7b"]
    command += ["--acme-flag", "1", "-x", "2"]
    record = {"pid": 7, "server": 7, "role": "scheduler_TP0", "sglang": "0.5.23", "patches": []}
    assert reporting.process(record, command)["command"] == (
        "python -m sglang.launch_server --model-path ... --tp 8 --api-key ... --host=... "
        "--trust-remote-code --attention-backend triton ... --dtype=bfloat16 "
        "--lora-paths ... --random-seed -1 --dtype half ..."
    )


def test_roles() -> None:
    assert public.role("scheduler_DP1_TP0") == "scheduler_DP1_TP0"
    assert public.role("run_secret_model.py") == "other"
    assert public.role("scheduler_for_acme.py") == "other"


def test_the_file_holds_what_is_said_and_nothing_private(
    throwaway: Throwaway, tmp_path: Path
) -> None:
    throwaway.put(
        "sitecustomize.py",
        "import throwaway_patches as t\nt.use(t.STEP, t.HELPER)\nt.look_nowhere_else()\n",
    )
    script = throwaway.put("serve_secret_model.py", SERVER)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    throwaway.put("sglang/srt/server_args.py", few_flags.SOURCE)
    command = ["--model-path", "me/secret-model", "--tp", "2", "--api-key", "top-secret"]
    server = subprocess.Popen(
        [sys.executable, str(script), *command],
        env=throwaway.environment(**cache),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout
        assert server.stdout.readline() == "up\n"
        file = tmp_path / "report.json"
        done = throwaway.command("report", "--output", str(file), **cache)
    finally:
        server.kill()
        server.communicate()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{file} holds, and nothing else:")
    assert (
        "\nverdicts   2 applies, with SGLANG_PERF_PATCHES=all\nprocesses  1, live patches: 1\n"
        in done.stdout
    )
    text = file.read_text()
    data = json.loads(text)
    assert data["sglang"] == "1.0"
    assert data["versions"]["python"].startswith("3.")
    assert [entry["verdict"] for entry in data["verdicts"]] == ["applies", "applies"]
    (process,) = data["processes"]
    assert process["role"] == "other"
    assert process["command"].endswith(" --model-path ... --tp 2 --api-key ...")
    assert process["patches"][0]["state"] == "live"
    for private in ("secret", str(tmp_path), "site"):
        assert private not in text + done.stdout.replace(str(file), "")


def test_a_file_that_cannot_be_written_is_one_sentence(throwaway: Throwaway) -> None:
    done = throwaway.process(
        """
        import sys
        from throwaway_patches import *
        look_nowhere_else()
        use(STEP)
        from sglang_perf_patches.cli import main
        sys.exit(main(["report", "--output", "/nowhere/at/all"]))
        """
    )
    assert done.returncode == 2
    assert done.stderr == ("sglang-perf-patches: /nowhere/at/all: No such file or directory\n")
