"""``report``: what it holds, and what it must never hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from throwaway import Throwaway

from sglang_perf_patches.cli.redact import Redaction, role, shown_flags

REDACTION = Redaction(hosts=("gpu-17",), users=("alice",))

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/alice/models/secret is gone", "<path> is gone"),
        ("can't read '/models'", "can't read '<path>'"),
        ("below ~/work/x.py, line 3", "below <path>, line 3"),
        ("at https://user:pw@host.example/v1?key=1 it", "at <host> it"),
        ("port of 10.1.2.3:30000", "port of <host>"),
        ("fe80:0:0:0:1:2:3:4", "<host>"),
        ("alice@example.com on gpu-17 as alice", "<host> on <host> as <user>"),
        ("token hf_abcdefghijklmnop", "token <removed>"),
        ("sk-abcdefghijklmnopqrstuv", "<removed>"),
        ("a" * 48, "<removed>"),
    ],
)
def test_what_is_taken_out(text: str, expected: str) -> None:
    assert REDACTION.text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "proven on this code, as released in 0.5.10.post1",
        "sglang.srt.layers.attention.mamba.mamba2_metadata:Mamba2Metadata is not the code we know",
        "stock/patched, 11 / 36 ms; 0.50 (0.40-0.60)",
        "malice and alices",
    ],
)
def test_what_stays(text: str) -> None:
    assert REDACTION.text(text) == text


def test_flags_without_what_their_values_tell() -> None:
    words = ["python", "-m", "sglang.launch_server", "--model-path", "me/secret-7b", "--tp", "8"]
    words += ["--api-key", "12345", "--host=0.0.0.0", "--port", "30000", "--trust-remote-code"]
    words += ["--attention-backend", "triton", "--attention-backend=/tmp/x y", "--dtype=bfloat16"]
    words += ["--mem-fraction-static", "0.8", "--lora-paths", "a=b", "c=d", "--seed", "-1"]
    assert shown_flags(words) == [
        "--model-path <removed>",
        "--tp 8",
        "--api-key <removed>",
        "--host <removed>",
        "--port 30000",
        "--trust-remote-code",
        "--attention-backend triton",
        "--attention-backend <removed>",
        "--dtype bfloat16",
        "--mem-fraction-static 0.8",
        "--lora-paths <removed> <removed>",
        "--seed -1",
    ]


def test_roles() -> None:
    assert role("scheduler_TP0") == "scheduler_TP0"
    assert role("run_secret_model.py") == "<script>"


def test_the_file_holds_all_that_is_printed_and_nothing_private(
    throwaway: Throwaway, tmp_path: Path
) -> None:
    throwaway.put(
        "sitecustomize.py",
        "import throwaway_patches as t\nt.use(t.STEP, t.HELPER)\nt.look_nowhere_else()\n",
    )
    script = throwaway.put("serve_secret_model.py", SERVER)
    environment = throwaway.environment(XDG_CACHE_HOME=str(tmp_path / "cache"))
    bench = tmp_path / "cache" / "sglang-perf-patches" / "last-bench.json"
    bench.parent.mkdir(parents=True)
    bench.write_text(json.dumps({"sglang": f"1.0 at {throwaway.site}", "tables": []}))
    words = ["--model-path", "me/secret-model", "--tp", "2", "--api-key", "top-secret"]
    server = subprocess.Popen(
        [sys.executable, str(script), *words], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout
        assert server.stdout.readline() == "up\n"
        file = tmp_path / "report.json"
        done = subprocess.run(
            [sys.executable, "-m", "sglang_perf_patches", "report", "--output", str(file)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        server.kill()
        server.communicate()
    assert done.returncode == 0, done.stderr
    assert done.stdout == file.read_text()
    data = json.loads(done.stdout)
    assert data["sglang"] == "1.0"
    assert data["versions"]["python"].startswith("3.")
    assert [found["verdict"] for found in data["verdicts"]] == ["applies", "applies"]
    (process,) = data["processes"]
    assert process["role"] == "<script>"
    assert process["flags"] == ["--model-path <removed>", "--tp 2", "--api-key <removed>"]
    assert process["patches"][0]["state"] == "live"
    assert data["last_bench"] == {"sglang": "1.0 at <path>", "tables": []}
    for private in ("secret", str(tmp_path), "site"):
        assert private not in done.stdout


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
    assert done.stderr == (
        "sglang-perf-patches: /nowhere/at/all can't be written: No such file or directory\n"
    )
