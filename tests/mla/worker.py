"""Run checks on one sglang release: ``python worker.py CHECK…``, the release on PYTHONPATH.

Prints one JSON line per check: its name, and the traceback where it failed, else null.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback

from sglang_perf_patches.proof import mla

os.environ["SGLANG_PERF_PATCHES"] = "none"  # nothing goes live but what a check makes live
mla.prepare()


def main(names: list[str]) -> None:
    """Run the checks."""
    for name in names:
        began = time.monotonic()
        error = None
        try:
            importlib.import_module(f"check_{name}").run()
        except Exception:
            error = traceback.format_exc()
        taken = round(time.monotonic() - began, 1)
        print(json.dumps({"check": name, "error": error, "seconds": taken}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
