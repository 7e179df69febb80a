"""With which features of a server the mamba patches were proven.

``verify`` is the patch's own case, played with the feature's arguments in the server that the
process publishes (``tests/releases/test_played.py``).
"""

STATES = (
    *("tracked-states", "pages", "data-parallel", "no-overlap", "no-cuda-graphs"),
    *("quantised-kv", "quantised-weights"),
)
ALL = (*STATES, "priorities")
