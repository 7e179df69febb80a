"""For every process with this folder on PYTHONPATH: $DUMMY_WEIGHTS asks for `dummy_weights`."""

import os

import dummy_weights

if os.environ.get("DUMMY_WEIGHTS"):
    dummy_weights.enlarge()
