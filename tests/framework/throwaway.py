"""A throwaway package named sglang, and patches for it, to test the framework without the real one.

Each scenario is a script that runs in a fresh Python process, because the tests are about what a
process does from its start.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from linux_mlx.patience import limit_s
from sglang_perf_patches import downloads

REPOSITORY = Path(__file__).parents[2]
NO_SGLANG = "sglang-perf-patches: sglang is not installed for this Python; use one that has it"

MODULE_A = '''
"""A module that a patch changes."""

class Worker:
    """Adds."""

    factor = 1

    def step(self, x):
        """Add one."""
        return x + 1

    @staticmethod
    def fixed(x):
        return x

    @property
    def name(self):
        return "stock"

class Child(Worker):
    pass

def helper(x, *, scale=1):
    return x * scale
'''

MODULE_B = """
from sglang.srt.a import Worker, helper

def use(x):
    return helper(x, scale=2)

class Caller:
    def call(self, x):
        return Worker().step(x)
"""

PATCHES = '''
"""Declarations for the throwaway package, put in the place of the real sets."""

from sglang_perf_patches import sets
from sglang_perf_patches.compat import source
from sglang_perf_patches.model.patch import Marker, Patch, PatchSet, Variant

A, B = "sglang.srt.a", "sglang.srt.b"

def declare(id, *, install, targets, releases=("1.0",), **more):
    """A patch with an install function, or the name of one in `throwaway_installs`."""
    of_variant = {key: more.pop(key) for key in ("adds", "depends", "awaits") if key in more}
    def run(patching):
        import throwaway_installs

        named = install if callable(install) else getattr(throwaway_installs, install)
        named(patching)

    variant = Variant(releases=releases, install=run, targets=targets, **of_variant)
    return Patch(id=id, summary="summary", variants=(variant,), **more)

def look_nowhere_else():
    """Let `status` see none of this machine's own servers: only what the environment names."""
    from sglang_perf_patches.telemetry import records

    records._RUN = records._TEMPORARY = "/nowhere"

def wait_for_threads():
    """Until no other thread does requests, so that each has logged what came of its own."""
    import time

    from sglang_perf_patches.live.executor import Executor
    from sglang_perf_patches.live.threads import runs_anywhere

    while runs_anywhere([Executor.go_on.__code__]):
        time.sleep(0.01)

def use(*patches, tree=None):
    """Make these the only patches, known as the tree (the installed one) has them."""
    tree = tree or source.installed()
    found = []
    for name in dict.fromkeys(patch.set for patch in patches):
        members = tuple(patch for patch in patches if patch.set == name)
        known = {
            reference: {definition.digest: variant.releases}
            for patch in members
            for variant in patch.variants
            for reference in variant.targets + variant.depends
            if (definition := tree.definition(reference))
        }
        found.append(PatchSet(name, name, members, known))
    sets.load = lambda: tuple(found)

STEP = declare("one.step", install="step", targets=(f"{A}:Worker.step",))
TEN = declare("one.ten", install="ten", targets=(f"{A}:Worker.step",))
HELPER = declare("two.helper", install="helper", targets=(f"{A}:helper",))
BOTH = declare(
    "two.both",
    install="both",
    targets=(f"{A}:Worker.step", f"{B}:Caller.call"),
    adds=(f"{A}:Worker.extra",),
    depends=(f"{A}:Worker",),
)
POLICY = declare("two.policy", kind="policy", install="step", targets=(f"{A}:Worker.step",))
CALL = declare("two.call", install="call", targets=(f"{B}:Caller.call",))
'''

INSTALLS = '''
"""What the throwaway patches do."""

A, B = "sglang.srt.a", "sglang.srt.b"

def step(patching):
    ran = patching.ran

    def make(inner):
        def step(self, x):
            ran.seen = True
            return inner(self, x) + 100

        return step

    patching.override(f"{A}:Worker.step", make)

def ten(patching):
    patching.override(f"{A}:Worker.step", lambda inner: lambda self, x: inner(self, x) * 10)

def helper(patching):
    patching.override(
        f"{A}:helper", lambda inner: lambda x, *, scale=1: inner(x, scale=scale) + 1000
    )

def both(patching):
    step(patching)
    patching.override(f"{A}:Worker.extra", lambda _: lambda self: "extra")
    call(patching)

def call(patching):
    patching.override(f"{B}:Caller.call", lambda inner: lambda self, x: inner(self, x) + 1)

def forgets(patching):
    """Leaves a declared target unchanged."""

def breaks(patching):
    step(patching)

    def make(inner):
        raise ZeroDivisionError("broken on purpose")

    patching.override(f"{B}:Caller.call", make)

def gates(patching):
    from sglang_perf_patches.model.patching import Gated

    raise Gated("not in this situation")
'''

BEGINNING = (
    f"LIMIT_S = {limit_s():.0f}"
    + """
import dataclasses, faulthandler, importlib, logging, os, sys, threading, time, warnings
faulthandler.dump_traceback_later(LIMIT_S, exit=True)
from throwaway_patches import *
import throwaway_installs as installs
import sglang_perf_patches as ours
from sglang_perf_patches.live import engine

def own(reference, amount=1, **more):
    # A patch that adds to what one function returns.
    def adds(patching):
        patching.override(reference, lambda inner: lambda *args: inner(*args) + amount)
    return declare("one.own", install=adds, targets=(reference,), **more)

def take_off(patch):
    # One patch, as soon as that is safe.
    registry = engine._current[0]
    def work():
        registry._remove(registry[patch], "off", "")
        registry.look()
    ours.executor.do(work, wait_s=1)

def all_live(selection="all"):
    return {state.state for state in ours.activate(selection).patches} == {"live"}

def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S / 2
    while not condition():
        assert time.monotonic() < deadline, engine.report()
        time.sleep(0.05)

def wait_for(patch, state):
    # Reads what is reported: `activate` would look again by itself.
    wait_until(lambda: engine.report().of(patch).state == state)
    return engine.report().of(patch)
"""
)
"""What `Throwaway.play` puts in front of a script."""

ENVIRON = """
import os
from types import SimpleNamespace

class envs:
    SGLANG_PLUGINS = SimpleNamespace(get=lambda: os.environ.get("SGLANG_PLUGINS"))
    SGLANG_PLATFORM = SimpleNamespace(get=lambda: os.environ.get("SGLANG_PLATFORM"))
"""
PUBLISHING = """def set_global_server_args_for_scheduler(server_args):
    global _published
    _published = server_args

def get_global_server_args():
    if _published is None:
        raise ValueError("Global server args is not set yet!")
    return _published
"""
"""How releases up to 0.5.14 publish a server's arguments, in ``server_args``."""


@dataclass
class Throwaway:
    """A folder with the throwaway package, and the processes that use it."""

    site: Path
    runtime: Path
    cwd: Path | None = None

    @property
    def temporary(self) -> Path:
        return self.runtime.parent / "temporary"

    @classmethod
    def write(cls, folder: Path) -> "Throwaway":
        package = cls(folder / "site", folder / "runtime")
        package.put("sglang/__init__.py", "")
        package.put("sglang/version.py", '__version__ = "1.0"\n')
        package.put("sglang/srt/__init__.py", "")
        package.put("sglang/srt/a.py", MODULE_A)
        package.put("sglang/srt/b.py", MODULE_B)
        package.put("throwaway_patches.py", PATCHES)
        package.put("throwaway_installs.py", INSTALLS)
        package.runtime.mkdir(mode=0o700)
        package.temporary.mkdir(mode=0o700)
        return package

    def put(self, name: str, text: str) -> Path:
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def append(self, name: str, text: str) -> None:
        with open(self.site / name, "a", encoding="utf-8") as file:
            file.write(text)

    def lend_plugin_loader(self, release: str) -> None:
        """Give the package the plugin loader of a release, and the settings that it reads."""
        plugins = downloads.tree(release) / "sglang" / "srt" / "plugins"
        shutil.copytree(plugins, self.site / "sglang" / "srt" / "plugins")
        self.put("sglang/srt/environ.py", ENVIRON)

    def environment(self, **variables: str | None) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG")}
        ours: dict[str, str | None] = {
            "PYTHONPATH": os.pathsep.join([str(self.site), str(REPOSITORY / "src")]),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_CACHE_HOME": str(self.site.parent / "cache"),
            "TMPDIR": str(self.temporary),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        known = {**kept, **ours, **variables}
        return {name: value for name, value in known.items() if value is not None}

    def command(
        self, *words: str, python: str | Path = sys.executable, **variables: str | None
    ) -> subprocess.CompletedProcess[str]:
        return self.execute(python, "-m", "sglang_perf_patches", *words, **variables)

    def process(
        self, script: str, *command: str, **variables: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Run a script in a fresh Python, or behind `command` and its words."""
        start = command or (sys.executable,)
        return self.execute(*start, "-c", textwrap.dedent(script), **variables)

    def execute(
        self, *command: str | Path, **variables: str | None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment(**variables),
            cwd=self.cwd,
            capture_output=True,
            text=True,
            timeout=limit_s(),
        )

    def start(
        self,
        command: Sequence[str | Path],
        stderr: IO[str] | int | None = subprocess.PIPE,
        **variables: str | None,
    ) -> subprocess.Popen[str]:
        """Start a command in that environment and in a session of its own, with pipes."""
        return subprocess.Popen(
            command,
            env=self.environment(**variables),
            cwd=self.cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
        """Run a script in a fresh Python, which must end well; the script has the asserts."""
        done = self.process(script, **variables)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done

    def play(self, script: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
        """Run a script that begins with `BEGINNING`, which must end well."""
        return self.run(BEGINNING + script, **variables)

    def records(self) -> list[dict[str, object]]:
        folder = self.runtime / "sglang-perf-patches"
        return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def strictly(selection: str) -> dict[str, str]:
    """The variables that choose patches, and end a process without them."""
    return {"SGLANG_PERF_PATCHES": selection, "SGLANG_PERF_PATCHES_STRICT": "1"}


def distribution(folder: Path, name: str, entry_point: str) -> Path:
    """Put a distribution with an entry point into `folder`, and return it."""
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{entry_point}\n")
    return folder


def plugins(folder: Path, theirs: str) -> list[Path]:
    """The distributions of this project and of a plugin with the text `theirs`, in that order."""
    entry_point = "perf_patches = sglang_perf_patches.plugin:load"
    ours = distribution(folder / "ours", "sglang-perf-patches", entry_point)
    their_folder = distribution(folder / "theirs", "their-plugin", "theirs = their:load")
    (their_folder / "their.py").write_text(theirs)
    return [ours, their_folder]


def know(throwaway: Throwaway, tree: Path) -> None:
    """Let the sets of every process be known as `tree` has them."""
    text = """
from dataclasses import replace
import throwaway_patches as t
from sglang_perf_patches.compat import source
gone = t.declare("two.gone", install="step", targets=("sglang.srt.gone:f",))
built = t.declare("two.built", install="step", targets=(f"{t.A}:helper",),
    upstream=("sgl-project/sglang#1",), built_in_since="1.0",
    markers=(t.Marker(definition=f"{t.A}:helper", contains="scale"),))
first = source.Tree(source.find(TREE))
t.use(t.STEP, t.HELPER, t.BOTH, t.POLICY, gone, built, tree=first)
"""
    throwaway.put("sitecustomize.py", text.replace("TREE", repr(str(tree))))


def change(tree: Path, before: str = "return x + 1", after: str = "return 1 + x") -> None:
    path = tree / "srt" / "a.py"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
