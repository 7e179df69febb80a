"""``report``: what it holds, and what it must never hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from throwaway import Throwaway

from sglang_perf_patches import sets
from sglang_perf_patches.bench import vocabulary
from sglang_perf_patches.bench.server.flags import shown_flags
from sglang_perf_patches.cli import published
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


def example(said: Any) -> dict[str, Any]:
    """What is gathered for a report, with something in each place that can hold text."""
    patch = {"id": said, "state": said, "reason": said, "ran": True}
    side = {"TTFT": said, said: 1.0}
    server = {
        "pid": 7,
        "server": said,
        "role": said,
        "sglang": said,
        "selection": f"all,{said}",
        "started": said,
        "patches": [patch, {**patch, "id": "mlx.kv-arena", "state": "failed"}],
        "flags": ["python", said, "--dtype", "half", said, f"--tp={said}", f"--{said}", said],
    }
    table = {
        "set": "mlx",
        "title": f"a decode step {said}",
        "columns": [said],
        "rows": [[said, 1, {"ratio": said, said: said}]],
        "notes": [said],
    }
    change = {"stock": [said], "word": said, "unit": said, "means": said, said: said}
    stopped = f"the server ended with 1 while starting: {said} (log: {said})"
    return {
        said: said,
        "made": said,
        "versions": {"python": said, "torch": f"2.9.1+{said}", "system": f"Linux {said}", said: 1},
        "machine": {"gpu": f"NVIDIA H200 {said}", "processor": f"AMD EPYC {said}", said: said},
        "selection": said,
        "sglang": said,
        "verdicts": [{"id": said, "verdict": said, "reason": f"refused {said}", "selected": said}],
        "processes": [server, said, None],
        "last_bench": {
            "sglang": f"0.5.23 at {said}",
            "machine": {"gpu": said, "measured": said},
            "tables": [table, said],
            "ended": {"mlx": said, said: said},
            "reasons": {"mlx": f"it failed with RuntimeError: {said}", said: said},
            "command": f"bench mlx {said} --rounds {said}",
            "model": said,
            "repeat": said,
            "load": said,
            "selection": said,
            "turns": said,
            "changes": {"TTFT": change, said: change},
            "tokens": {"word": said, "sentence": said, "different": [said]},
            "live": [{"patch": said, "role": said, "live": 1, "ran": said}],
            "failed": {said: said, "mlx.kv-arena": f"failed: {said}"},
            "lost": [said],
            "stopped": {"turn": 1, "side": said, "reason": stopped},
            "boots": [{"stock": side, "patched": said}],
            "conclusion": f"No conclusion. It stopped early: turn 1, stock: {said}.",
            "rule": said,
            "exit_code": said,
            said: said,
        },
    }


def shown(said: Any) -> str:
    return json.dumps(published.report(example(said)), ensure_ascii=False)


@pytest.mark.parametrize("private", PRIVATE)
def test_what_is_private_is_nowhere(private: str) -> None:
    assert private not in json.loads(shown(private))
    assert private not in shown(private)
    assert max(private.split(), key=len) not in shown(private)


@given(
    st.text(max_size=20),
    st.text(max_size=20),
    st.sampled_from(("{}", "half {}", "0.5.9+{}", "scheduler_{}", "A {} H200", "1 {}", "{}.1")),
)
@settings(max_examples=150, deadline=None)
def test_no_text_comes_through_anywhere(before: str, after: str, around: str) -> None:
    assert CANARY not in shown(around.format(before + CANARY + after))


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5))
@settings(max_examples=50, deadline=None)
def test_anything_in_the_wrong_place_is_no_error(value: Any) -> None:
    data = example("x")
    for place in (data, data["last_bench"], data["processes"][0]):
        for key in list(place):
            json.dumps(published.report({**data, key: value}), allow_nan=False)
            place[key] = value
    json.dumps(published.report(data), allow_nan=False)


@pytest.mark.parametrize(
    "text",
    [
        "proven on this code, as released in 0.5.10.post1",
        "the code that it would change is not there",
        "it needs mlx.kv-arena, which is failed",
        "the model has no recurrent states",
        "upstream has it",
    ],
)
def test_what_stays(text: str) -> None:
    assert vocabulary.sentence(text) == text


def test_what_stays_of_a_gate() -> None:
    gate = "tensor parallelism is on (--tp-size), and it was not proven with that"
    assert vocabulary.sentence(gate) == (
        "tensor parallelism is on --tp-size, and it was not proven with that"
    )
    assert vocabulary.sentence("secret7b is on (--secret7b)") == "hidden is on hidden"


def test_what_stays_of_a_refusal_and_of_an_error() -> None:
    (reference, *_) = by_id(sets.load())["mlx.kv-arena"].references()
    reason = f"{reference} is not the code we know: body changed (nearest known release: 0.5.22)"
    assert vocabulary.sentence(reason) == (
        f"{reference} is not the code we know: body changed nearest known release: 0.5.22"
    )
    assert vocabulary.sentence("ImportError: no secret7b here") == "ImportError: no hidden here"


def test_why_a_bench_stopped_without_what_the_server_said() -> None:
    last_bench = published.report(example("meta-llama/secret"))["last_bench"]
    assert last_bench["stopped"] == {
        "turn": 1,
        "side": "other",
        "reason": "the server ended with 1 while starting",
    }
    assert last_bench["conclusion"] == "No conclusion."


def test_versions_and_machines() -> None:
    assert [vocabulary.version(text) for text in ("0.5.10.post1", "2.9.1+cu128", "1.0+acme")] == [
        *("0.5.10.post1", "2.9.1+cu128", "1.0+hidden")
    ]
    assert vocabulary.version("10.1.2.3") == "other"
    assert vocabulary.gpus("NVIDIA H200, NVIDIA L40S-48C, Acme 1") == "H200, L40S, other"
    assert vocabulary.processor("AMD EPYC 9654 96-Core Processor") == "AMD EPYC"
    assert vocabulary.selection("all,-mla,mlx.kv-arena,acme") == "all,-mla,mlx.kv-arena,other"


def test_flags_without_what_their_values_tell() -> None:
    command = ["python", "-m", "sglang.launch_server", "--model-path", "me/secret-7b", "--tp", "8"]
    command += ["--api-key", "12345", "--host=0.0.0.0", "--port", "30000", "--trust-remote-code"]
    command += ["--attention-backend", "triton", "--attention-backend=/tmp/x y", "--dtype=bfloat16"]
    command += ["--mem-fraction-static", "0.8", "--lora-paths", "a=b", "c=d", "--random-seed", "-1"]
    command += ["--dtype", "half", "secret7b", "--acme-flag", "1", "-x", "2"]
    assert shown_flags(command) == [
        "other",
        "--model-path hidden",
        "--tp 8",
        "--api-key hidden",
        "--host hidden",
        "--port hidden",
        "--trust-remote-code",
        "--attention-backend triton",
        "--attention-backend hidden",
        "--dtype bfloat16",
        "--mem-fraction-static 0.8",
        "--lora-paths hidden hidden",
        "--random-seed -1",
        "--dtype half hidden",
        "other",
        "other",
    ]


def test_roles() -> None:
    assert vocabulary.role("scheduler_DP1_TP0") == "scheduler_DP1_TP0"
    assert vocabulary.role("run_secret_model.py") == "other"
    assert vocabulary.role("scheduler_for_acme.py") == "other"


def test_the_file_holds_what_is_said_and_nothing_private(
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
    command = ["--model-path", "me/secret-model", "--tp", "2", "--api-key", "top-secret"]
    server = subprocess.Popen(
        [sys.executable, str(script), *command], env=environment, stdout=subprocess.PIPE, text=True
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
            timeout=600,
        )
    finally:
        server.kill()
        server.communicate()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{file} holds, and nothing else:")
    assert "\nverdicts    2 applies; of all\nprocesses   1, live patches: 1\n" in done.stdout
    text = file.read_text()
    data = json.loads(text)
    assert data["sglang"] == "1.0"
    assert data["versions"]["python"].startswith("3.")
    assert [entry["verdict"] for entry in data["verdicts"]] == ["applies", "applies"]
    (process,) = data["processes"]
    assert process["role"] == "other"
    assert process["flags"] == ["--model-path hidden", "--tp 2", "--api-key hidden"]
    assert process["patches"][0]["state"] == "live"
    assert data["last_bench"] == {"sglang": "1.0", "tables": []}
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
    assert done.stderr == (
        "sglang-perf-patches: /nowhere/at/all can't be written: No such file or directory\n"
    )
