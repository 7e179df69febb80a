"""Keeps the project's own files true; it works on the checkout that it is in.

``python3 -m tests.maintain.fingerprints`` takes the fingerprints from the released wheels.
``python3 -m tests.maintain.tables`` writes the tables and pages. Both need Python alone.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout."""

# This checkout's package, even if another checkout or a release is installed.
if str(ROOT / "src") not in sys.path[:1]:
    sys.path.insert(0, str(ROOT / "src"))
