"""Time each removed piece on a GPU: stock and patched, interleaved, on one release's own kernels.

``python microbench.py OUT.json``, the release on PYTHONPATH: see README.md beside this.
"""

import os
import sys
from pathlib import Path

os.environ["MLA_ON_GPU"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import lent  # after the path is set

if __name__ == "__main__":
    lent.lend()
    import pieces

    sys.exit(pieces.main(sys.argv[1]))
