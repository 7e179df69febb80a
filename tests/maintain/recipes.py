"""``python3 -m tests.maintain.recipes`` rewrites the table of recipes, in two minutes.

It needs the environment of the tests: run it with ``.venv``'s Python.
"""

import sys
import tempfile
from pathlib import Path

from . import ROOT

sys.path.insert(0, str(ROOT / "tests" / "harness"))

from tests.releases.recipes import outcomes

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = outcomes.ask(Path(folder))
    outcomes.TABLE.write_text(outcomes.page(found), encoding="utf-8")
    print("\n".join(outcomes.summary(found)))
