"""With which features of a server the mamba patches were proven.

``verify`` is the patch's own case, played with the feature's arguments in the server that the
process publishes (``tests/releases/test_played.py``).
"""

STATES = (
    *("tracked-states", "pages", "data-parallel", "no-overlap", "no-cuda-graphs"),
    *("quantised-kv", "quantised-weights"),
    "other-gpu",  # lists, slots and rows, which no GPU computes otherwise: `verify` needs none
)
ALL = (*STATES, "priorities")
TEXT = {"multimodal": "tests/mamba/qwen_jobs.py: replies"}
"""A model that takes images, which is sent text. What a request has is not known at boot, so images
run as well; these patches read lengths, slots and states, and nothing of an image."""
RANKS = {"tensor-parallel": "tests/mamba/qwen_rank.py: main"}
"""Two processes that meet over gloo."""
