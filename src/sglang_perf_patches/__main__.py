"""``python -m sglang_perf_patches``: the command, where its script is not on the path."""

import sys

from .cli import main

sys.exit(main())
