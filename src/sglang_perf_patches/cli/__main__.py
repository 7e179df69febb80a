"""``python -m sglang_perf_patches.cli``."""

import sys

from . import main

sys.exit(main())
