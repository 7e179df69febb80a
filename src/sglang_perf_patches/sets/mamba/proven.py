"""With which features of a server each mamba patch was proven, and by which check.

``verify`` is the patch's own case, played with the feature's arguments in the server that the
process publishes (``tests/releases/test_played.py``).
"""

_ALL = (
    *("tracked-states", "pages", "data-parallel", "no-overlap", "no-cuda-graphs"),
    *("quantised-kv", "quantised-weights", "priorities"),
)

PROVEN = {
    name: dict.fromkeys(features, "verify")
    for name, features in {
        "mamba.zero-sync": (*_ALL, "mixed-chunks", "no-radix-cache"),
        "mamba.lightning-rows": _ALL,
        "mamba.mamba2-chunk-indices": _ALL,
        "mamba.gdn-prefill-graph": (*_ALL, "hierarchical-cache"),
    }.items()
}
