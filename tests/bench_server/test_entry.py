"""``bench server`` checks before a boot that the command's Python would give a server patches."""

from __future__ import annotations

import sys

from served import Bench


def refused(bench: Bench, *before: str, words: tuple[str, ...] = (), **variables: str) -> str:
    """The only line of a run that starts no server."""
    server = bench.throwaway.put("sglang/launch_server.py", "")
    server.write_text((bench.throwaway.site / "program.py").read_text(encoding="utf-8"))
    ours = [sys.executable, "-m", "sglang_perf_patches", "bench", "server", *words, "--"]
    command = [*before, sys.executable, "-m", "sglang.launch_server", "--pids", str(bench.pids)]
    done = bench.run([*ours, *command], **variables)
    assert done.returncode == 2, done.stderr
    assert not bench.pids.exists()
    return done.stderr.splitlines()[-1]


def test_a_filter_that_leaves_this_plugin_out_is_not_overridden(bench: Bench) -> None:
    bench.throwaway.lend_plugin_loader("0.5.23")
    said = "patched: SGLANG_PLUGINS does not name perf_patches"
    assert said in refused(bench, SGLANG_PLUGINS="other")
    assert said in refused(bench, "env", "SGLANG_PLUGINS=other, another")
    side = ("--b", "SGLANG_PERF_PATCHES=one SGLANG_PLUGINS=other")
    assert "b: SGLANG_PLUGINS does not name" in refused(bench, words=side)


def test_a_python_without_this_package_is_named(bench: Bench) -> None:
    before = ("env", "-u", "PYTHONPATH", f"PYTHONPATH={bench.throwaway.site}")
    bench.throwaway.put("sitecustomize.py", "")
    server = refused(bench, *before, words=())
    assert "No entry point" in server or "loads no plugins" in server
