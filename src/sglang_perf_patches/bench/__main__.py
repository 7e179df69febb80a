"""``python -m sglang_perf_patches.bench SET …``: see `main`."""

import sys

from . import main

sys.exit(main(sys.argv[1:]))
