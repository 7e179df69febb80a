"""With which features of a server the mamba patches were proven.

``verify`` is the patch's own proof, run in a server with the feature's arguments
(``tests/releases/test_played.py``).
"""

STATES = (
    *("tracked-states", "pages", "data-parallel", "no-overlap", "no-cuda-graphs"),
    *("quantised-kv", "quantised-weights"),
    "expert-all-to-all",  # between experts, which read none of the lists and slots
    "other-gpu",  # these patches compute lists, slots and rows, which are the same on any GPU
)
ALL = (*STATES, "priorities")
TEXT = {"multimodal": "tests/mamba/qwen_jobs.py: replies"}
"""A model that takes images, tested with text. A server does not know at boot whether images will
come; these patches read lengths, slots and states, and nothing of an image."""
RANKS = dict.fromkeys(("tensor-parallel", "expert-parallel"), "tests/mamba/qwen_rank.py: main")
"""Two processes that meet over gloo."""
DRAFTS = {"eagle": "tests/mamba/qwen_spec_jobs.py: replies"}
"""NEXTN, with the model's own draft layer, whose worker stays stock's."""
SERVERS = dict.fromkeys(
    ("no-radix-cache", "mixed-chunks", "sessions"),
    "tests/mamba/qwen_jobs.py: with_features",
)
"""A small model behind a real scheduler."""
