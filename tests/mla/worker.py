"""Prove and check patches on one release: ``python worker.py PATCH…``, its tree on PYTHONPATH.

Prints the lines of the patches' cases, and one line per check: its patch, and its traceback if it
failed, else null. One process does both, because its imports take longer than most checks.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback

import prove
from sglang_perf_patches.proof import mla

os.environ["SGLANG_PERF_PATCHES"] = "none"  # nothing goes live except what a check makes live
mla.prepare()


def main(patches: list[str]) -> None:
    """Prove the patches, then run their checks."""
    prove.main(patches)
    for id in patches:
        name = id.removeprefix("mla.").replace("-", "_")
        began = time.monotonic()
        error = None
        try:
            importlib.import_module(f"check_{name}").run()
        except Exception:
            error = traceback.format_exc()
        taken = round(time.monotonic() - began, 1)
        print(json.dumps({"check": id, "error": error, "seconds": taken}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
