"""Play jobs on one release: ``python on_release.py MODULE.py``, the release on PYTHONPATH.

A job is a function of the module, by name, with its arguments: jobs come as JSON on stdin, each
``[name, {arguments}]``. Prints one JSON line a job, in order: ``job``, its ``value`` or the
``error`` that it raised, as text, ``seconds``, and ``on``: patch → the features with which it was
let through, as its process read them. One process plays them all, because importing a
release takes longer than most jobs. Every set has such a module, ``tests/SET/jobs.py``;
`released.play` runs it.
"""

import importlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import noted


def main(path: Path) -> None:
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    on: dict[str, set[str]] = {}
    noted.tell(lambda patch, features: on.setdefault(patch, set()).update(features))
    for name, arguments in json.load(sys.stdin):
        began = time.monotonic()
        on.clear()
        line: dict[str, Any] = {"job": name}
        try:
            line["value"] = getattr(module, name)(**arguments)
        except Exception:
            line["error"] = traceback.format_exc(limit=-4)
        line["on"] = {patch: sorted(features) for patch, features in on.items()}
        line["seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
