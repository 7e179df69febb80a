"""Creates virtual environments of pinned packages and caches them in the user's cache folder."""

import ast
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from linux_mlx.processes import Failure, last_lines, started
from linux_mlx.shims import linux_shims

_REQUIREMENTS = Path(__file__).parent / "requirements"
_OTHERS = _REQUIREMENTS / "others"  # releases that only the whole matrix boots
_CHECKOUT = Path(__file__).parents[3]
_PACKAGE = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in", "src")
_LEFT = {"__pycache__", "sglang_perf_patches.egg-info"}  # in ``src``, by Python and by setuptools
_DEFAULT_INDEX = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


@dataclass(frozen=True)
class Environment:
    """A finished virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def script(self, name: str) -> Path:
        return self.folder / "bin" / name


def releases() -> list[str]:
    """The sglang releases that have an environment, newest first."""
    names = [path.stem.removeprefix("sglang-") for path in _REQUIREMENTS.glob("sglang-*.txt")]
    return sorted(names, key=lambda name: [int(n) for n in re.findall(r"\d+", name)], reverse=True)


def sglang_environment(release: str) -> Environment:
    """One release of stock sglang, with the packages its MLX server needs on a Linux CPU."""
    name = f"sglang-{release}.txt"
    made = environment((_OTHERS if (_OTHERS / name).is_file() else _REQUIREMENTS) / name)
    _add_fast_blas(made)
    return made


def environment(
    requirements: Path, fill: Callable[[Environment, Sequence[str]], None] | None = None
) -> Environment:
    """The environment for a file of pinned requirements; built unless a finished one exists.

    The folder's name depends on its contents, so a changed pin creates a new environment. Only a
    complete build leaves the marker file ``finished``. If several processes need the environment,
    one of them builds it.
    """
    pins = _pins(requirements)
    kind = "\n".join([*pins, platform.python_version(), platform.machine()])
    key = hashlib.sha256(kind.encode()).hexdigest()[:12]
    made = Environment(_cache() / f"{requirements.stem}-{key}")
    finished = made.folder / "finished"
    with _alone(made):
        if not (finished.exists() and made.python.exists()):
            shutil.rmtree(made.folder, ignore_errors=True)
            made.folder.mkdir(parents=True)
            _lock(made).write_text("\n".join(pins) + "\n")
            _say(f"making an environment in {made.folder}")
            _run([sys.executable, "-m", "venv", made.folder], made, "python -m venv")
            (fill or _fill)(made, pins)
            finished.touch()
    return made


def install_checkout(into: Environment) -> None:
    """Install this checkout's package, unless exactly this source is installed already."""
    installed = into.folder / "checkout"
    with _alone(into):
        source = _digest(_CHECKOUT, _PACKAGE)
        if installed.exists() and installed.read_text() == source:
            return
        installed.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="sglang-perf-patches-") as folder:
            copy = copy_checkout(Path(folder, "source"))
            _install(into, ["--constraint", _lock(into), copy], "this checkout")
        installed.write_text(source)


def copy_checkout(to: Path) -> Path:
    """Copy what the package is built of into a new folder, and return it.

    setuptools leaves its build folder next to the source, and would package a deleted module that
    is still in there.
    """
    shutil.copytree(_CHECKOUT / "src", to / "src", ignore=shutil.ignore_patterns(*_LEFT))
    for name in _PACKAGE:
        if name != "src":
            shutil.copy(_CHECKOUT / name, to)
    return to


def _add_fast_blas(to: Environment) -> None:
    """Compile what the shims load for MLX, unless this machine has no compiler that can."""
    made = linux_shims.fast_blas(to.folder)
    with _alone(to):
        if not made.exists() and (compiler := shutil.which("gcc")):
            part = made.with_suffix(".part")
            options = ("-O3", "-ffp-contract=off", "-shared", "-fPIC", "-o", part)
            if not subprocess.run([compiler, *options, linux_shims.BLAS], check=False).returncode:
                part.rename(made)


def install_bench_client(into: Environment) -> None:
    """Add the packages that only a benchmark needs, for sglang's own bench_serving."""
    pins = _REQUIREMENTS / "bench-client.txt"
    installed = into.folder / pins.stem
    with _alone(into):
        if not installed.exists() or installed.read_text() != pins.read_text():
            _install(into, ["--no-deps", "--requirement", pins], "what bench_serving imports")
            installed.write_text(pins.read_text())


def variables(**more: str | Path) -> dict[str, str]:
    """The environment variables for a child process: this process's, filtered, and `more`.

    The user's own PYTHONPATH or SGLANG_… settings would change what runs.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "SGLANG_", "VIRTUAL_ENV"))
    }
    return kept | {name: str(value) for name, value in more.items()}


def _fill(made: Environment, pins: Sequence[str]) -> None:
    # Dependencies are resolved only for torch, since they depend on the build that is selected. The
    # pins contain all other packages, and resolving sglang would install CUDA packages.
    torch = [pin for pin in pins if pin.startswith("torch==")]
    if torch:
        _install(made, ["--constraint", _lock(made), *torch], torch[0])
    _install(made, ["--no-deps", "--requirement", _lock(made)], f"{len(pins)} packages")


def _install(into: Environment, arguments: Sequence[str | Path], what: str) -> None:
    """Install with uv, or with pip where uv can't: only pip knows all that a user told pip.

    uv takes a tenth of pip's time, and what several environments hold is on the disk once.
    """
    uv = _uv()
    words = ["pip", "install", "--python", into.python, *arguments]
    try:
        _run([uv.script("uv"), *words], into, f"uv: {what}", _as_pip(uv))
    except Failure as failure:
        _say(f"  {failure}")
        _pip(into, arguments, what)


def _pip(into: Environment, arguments: Sequence[str | Path], what: str) -> None:
    quietly = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
    # Python compiles the modules that are imported; most never are.
    command = [into.python, "-m", "pip", "install", "--no-compile", *quietly, *arguments]
    _run(command, into, f"pip: {what}")


def _uv() -> Environment:
    """The environment that uv has for itself."""
    requirements = _REQUIREMENTS / "uv.txt"
    return environment(requirements, lambda made, pins: _pip(made, pins, ", ".join(pins)))


def _as_pip(uv: Environment) -> dict[str, str]:
    """Variables by which uv looks for packages where the user's pip does.

    If several indexes have a version, uv takes a file of the first alone, and pip the best of all.
    So the user's main index comes first: an extra one may lack the wheel for this platform.
    """
    listed = _printed(uv, "-m", "pip", "config", "list")
    told: dict[str, str] = {}
    # "global.find-links='/folder'", from files and, as ":env:.find-links", from variables.
    for place in ("global", "install", ":env:"):
        for name, value in re.findall(rf"^{place}\.([\w-]+)=('.*')$", listed, re.MULTILINE):
            told[name] = " ".join(ast.literal_eval(value).split())
    main = told.get("index-url") or _printed(uv, "-c", _DEFAULT_INDEX).strip()
    settings = {
        "UV_DEFAULT_INDEX": main,
        "UV_INDEX": f"{main} {told.get('extra-index-url', '')}".strip(),
        "UV_FIND_LINKS": told.get("find-links", "").replace(" ", ","),
        "UV_INSECURE_HOST": told.get("trusted-host"),
        "SSL_CERT_FILE": told.get("cert"),
    }
    fixed = {"UV_CACHE_DIR": str(_cache() / "uv"), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    return {name: value for name, value in settings.items() if value} | fixed


def _printed(by: Environment, *words: str) -> str:
    """What an environment's Python prints; nothing of errors."""
    command: list[str | Path] = [by.python, *words]
    return subprocess.run(command, capture_output=True, text=True, env=variables()).stdout


def _run(
    command: Sequence[str | Path],
    made: Environment,
    what: str,
    more: Mapping[str, str] | None = None,
) -> None:
    log = made.folder / "build.log"
    _say(f"  {what} …")
    with started(command, variables=variables(**(more or {})), log=log) as process:
        process.wait()
    if process.returncode:
        raise Failure(f"{what} failed:\n{last_lines(log)}")


def _pins(requirements: Path) -> list[str]:
    """The requirements of a file and of those it includes, without comments."""
    pins = []
    for line in requirements.read_text().splitlines():
        if line.startswith("-r "):
            pins += _pins(requirements.parent / line.removeprefix("-r "))
        elif line and not line.startswith("#"):
            pins.append(line)
    return pins


def _lock(made: Environment) -> Path:
    return made.folder / "requirements.txt"


def _cache() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = named if named.is_absolute() else Path.home() / ".cache"
    return cache / "sglang-perf-patches" / "environments"


@contextmanager
def _alone(environment: Environment) -> Iterator[None]:
    """Hold a lock that the system releases when its holder ends, even by a crash."""
    lock = Path(f"{environment.folder}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another process that works on {environment.folder.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest(root: Path, names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        for path in sorted([root / name, *(root / name).rglob("*")]):
            if path.is_file() and _LEFT.isdisjoint(path.parts):
                digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
