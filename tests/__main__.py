"""``python3 -m tests [PYTEST ARGUMENT ...]``: every check of the project, from a clean checkout.

Makes an environment in ``.venv`` beside this folder with what the checks need, and runs ruff, the
type checker and pytest in it. Needs Linux and Python 3.11, as the released wheels and the CPU build
of torch do. With arguments, only pytest runs, with those. What the tests need of
released sglang is fetched into the user's cache folder at the first use.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv"


def main(arguments: list[str]) -> int:
    """Run the checks; the exit code of the first that fails."""
    python = environment()
    checks = [["pytest", *arguments]]
    if not arguments:
        # Two files at a time: what a file's tests share is made once.
        tests = ["pytest", "-n", "2", "--dist", "loadfile"]
        checks = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], tests]
    for words in checks:
        print(f"$ {' '.join(words)}", flush=True)
        code = subprocess.run([python, "-m", *words], cwd=ROOT).returncode
        if code:
            return code
    return 0


def environment() -> Path:
    """The Python of the environment, which is made anew where the project's needs have changed."""
    python = FOLDER / ("Scripts" if os.name == "nt" else "bin") / "python"
    stamp = FOLDER / "made-for"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest() + sys.version
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"making the environment {FOLDER.name} ...", flush=True)
        venv.create(FOLDER, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        # Dependency groups need pip 25.1, which an older Python does not bring.
        subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True)
        groups = ["--group", "test", "--group", "lint"]
        subprocess.run([*pip, "--editable", ".", *groups], check=True, cwd=ROOT)
        stamp.write_text(wanted, encoding="utf-8")
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
