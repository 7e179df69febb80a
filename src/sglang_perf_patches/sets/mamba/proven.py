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
OWN_SLOTS = (
    *("tensor-parallel", "expert-parallel", "dp-attention", "lora", "deterministic"),
    *("forward-metrics", "returned-insides", "compiled"),
)
"""Each rank works by its own lists and slots, which none of these change."""
RANKS = dict.fromkeys(("tensor-parallel", "expert-parallel"), "tests/mamba/qwen_rank.py: main")
"""Two processes that meet over gloo."""
