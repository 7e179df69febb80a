"""Source trees of released sglang versions, from the package index."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .model import private
from .model.errors import OperatorError

# Releases are wheels for one platform from 0.5.11 on; their Python files do not depend on it.
_PLATFORM = (
    *("--python-version=3.11", "--implementation=cp"),
    *("--abi=cp311", "--abi=abi3", "--abi=none"),
    *("--platform=any", "--platform=manylinux2014_x86_64"),
    *(f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31, 34, 35)),
)


class DownloadError(OperatorError, RuntimeError):
    """A release could not be fetched from the package index."""


def tree(version: str) -> Path:
    """The folder with the Python files of a release; the first call downloads it, and says so.

    Raises:
        DownloadError: the text is no version, the package index has no such release or did not
            answer, this Python has no pip, or the folder can't be written.
    """
    if not re.fullmatch(r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*", version):
        raise DownloadError(f"{version!r} is not a version of sglang: write it like 0.5.23")
    try:
        folder = private.cache() / "releases" / version
        if not folder.is_dir():
            _fetch(version, folder)
    except OSError as error:
        raise DownloadError(f"sglang {version} could not be fetched: {error}") from error
    return folder


def _fetch(version: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A folder with its final name is complete: it is filled elsewhere, then renamed.
    with tempfile.TemporaryDirectory(prefix=f"{version}.", dir=folder.parent) as work:
        with zipfile.ZipFile(_download(version, Path(work))) as archive:
            for name in archive.namelist():
                if name.startswith("sglang/") and name.endswith(".py"):
                    archive.extract(name, Path(work, "tree"))
        try:
            Path(work, "tree").rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise


def _download(version: str, into: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"sglang {version} could not be fetched: {sys.executable} has no pip to fetch it with "
            "(install pip there, or give a folder with this release by --sglang-path)"
        )
    print(f"sglang-perf-patches: fetching sglang {version} ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", f"--dest={into}", *_PLATFORM]
    download = subprocess.run([*command, f"sglang=={version}"], capture_output=True, text=True)
    wheels = sorted(into.glob("sglang-*.whl"))
    if download.returncode or not wheels:
        lines = list(filter(None, map(str.strip, download.stderr.splitlines())))
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        why = errors[-1] if errors else f"pip ended with {download.returncode} without a message"
        raise DownloadError(f"sglang {version} could not be fetched: {why[:300]}")
    return wheels[0]
