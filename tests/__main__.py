"""``python3 -m tests [quick] [--all] [FOLDER ...] [PYTEST ARGUMENT ...]``: the project's checks.

Without a folder or another argument, ruff, the type checker and pytest run. With one, pytest alone
runs. ``quick`` runs the tests of `QUICK`. ``--all`` plays the whole matrix of releases; otherwise
pytest plays the default tier (see ``tests/harness/tiers.py``). What has passed before with all that
it reaches is left out (see ``tests/harness/passes.py``); ``--fresh`` runs it. Four tests run at a
time, on two cores: some of them only wait.

The command makes an environment in ``.venv`` beside this folder with what the checks need. It needs
Linux and Python 3.11, as the released wheels and the CPU build of torch do.
"""

import hashlib
import os
import subprocess
import sys
import venv
from functools import partial
from pathlib import Path
from subprocess import PIPE, STDOUT

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv"

TIERS = {"--all", "--fresh"}
QUICK = tuple(
    f"tests/framework/test_{name}.py"
    for name in (
        *("declaration", "gains", "imports", "known", "patch_page"),
        *("quotes", "selection", "slots", "source", "verdict", "wrappers"),
    )
)
"""The tests of ``quick``: what needs no network and starts few processes."""

TAKES = {
    "": "5 to 15 minutes, depending on the machine",
    "quick": "about a minute",
    "--all": "one to three hours, depending on the machine",
    "framework": "less than 4 minutes",
    "releases": "some 2 minutes",
    **dict.fromkeys(("mla", "mamba", "mlx", "swa", "server", "proof"), "some 5 minutes"),
}
"""What is printed before a run: its time on two quiet cores."""


def main(arguments: list[str]) -> int:
    """Run the checks; return the exit code of the first that fails."""
    python = environment()
    pytest = ["pytest", *parallel(arguments), "--durations=10", *with_paths(arguments)]
    checks = [pytest]
    is_whole = not set(arguments) - TIERS or arguments == ["quick"]
    if is_whole:
        checks = [["ruff", "check", "."], ["ruff", "format", "--check", "."], pytest]
    # Each of a run's processes would compile the package and the tests again.
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    print(f"On two quiet cores this takes {takes(arguments)}.", flush=True)
    start = partial(subprocess.Popen, cwd=ROOT, env=variables)
    mypy = [python, "-m", "mypy"]
    # It has one core for a minute or two, and pytest the rest.
    types = start(mypy, stdout=PIPE, stderr=STDOUT, text=True) if is_whole else None
    codes = []
    for words in checks:
        print(f"$ {' '.join(words)}", flush=True)
        codes.append(start([python, "-m", *words]).wait())
        if codes[-1]:
            break
    if types:
        print(f"$ mypy\n{types.communicate()[0]}", end="", flush=True)
        codes.append(types.returncode)
    return next(filter(None, codes), 0)


def takes(arguments: list[str]) -> str:
    """How long a run with these arguments takes."""
    asked = " ".join(word for word in arguments if word != "--fresh")
    if asked in TAKES:
        return TAKES[asked]
    folders = [word for word in arguments if is_folder(word)]
    if "--all" in arguments or not folders:
        return f"no longer than the whole matrix, which is {TAKES['--all']}"
    each = ", ".join(f"{name} {TAKES.get(name, 'some minutes')}" for name in folders)
    return f"no longer than its folders: {each}"


def parallel(arguments: list[str]) -> list[str]:
    """How pytest is to use both cores, unless the arguments say how it should run."""
    if any(word.startswith(("-n", "--numprocesses", "--dist", "--pdb")) for word in arguments):
        return []
    # In the order of `tiers.weight`: a group's tests share work that is done once.
    return ["-n", "4", "--dist", "loadgroup", "--no-loadscope-reorder"]


def with_paths(arguments: list[str]) -> list[str]:
    """The arguments that name folders of tests, which come before any option's value."""
    if arguments == ["quick"]:
        return [*QUICK]
    options = [word for word in arguments if word.startswith("-") and word not in TIERS]
    names = arguments[: arguments.index(options[0])] if options else arguments
    paths = [f"tests/{word}" if is_folder(word) else word for word in names]
    return [*paths, *arguments[len(names) :]]


def is_folder(word: str) -> bool:
    """Whether a word is the name of a folder of tests."""
    return word.isidentifier() and (ROOT / "tests" / word).is_dir()


def environment() -> Path:
    """The Python of the environment, which is rebuilt when the project's needs have changed."""
    python = FOLDER / ("Scripts" if os.name == "nt" else "bin") / "python"
    stamp = FOLDER / "made-for"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest() + sys.version
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"making the environment {FOLDER.name} ...", flush=True)
        venv.create(FOLDER, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        # Dependency groups need pip 25.1, which an older Python does not bring.
        subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True)
        groups = ["--group", "test", "--group", "lint"]
        subprocess.run([*pip, "--editable", ".", *groups], check=True, cwd=ROOT)
        stamp.write_text(wanted, encoding="utf-8")
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
