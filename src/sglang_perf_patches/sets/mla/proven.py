"""With which features of a server the mla patches were proven.

``verify`` is the patch's own case, played with the feature's arguments in what it asks of the
server (``tests/releases/test_played.py``).
"""

METADATA = (
    *("eagle", "standalone", "pages", "tensor-parallel", "data-parallel"),
    *("no-overlap", "no-cuda-graphs", "no-radix-cache", "no-window-pool", "whole-prefills"),
    *("lora", "quantised-kv", "quantised-weights", "priorities", "sessions"),
    *("decode-server", "retracted-in-tensors", "deterministic"),
    *("expert-parallel", "expert-all-to-all"),  # experts read no metadata
    "other-gpu",  # lengths and tables, which no GPU computes otherwise: `verify` needs none
    *("hierarchical-cache", "returned-insides", "draft-vocabulary"),
)
"""Of what is made of lengths and tables alone: no layer runs in it."""
_ALSO = dict.fromkeys(("forward-metrics", "multimodal", "prefill-server"), "verify")
TABLES = dict.fromkeys((*METADATA, "dp-attention"), "verify") | _ALSO
"""Of the patches of page tables. Ranks of data-parallel attention have unequal batches: their cases
have idle ones, and graphs that hold only padding."""
_RANKS = (*METADATA, "draft-trees", "mixed-chunks", "tracked-states")
REQUESTS = dict.fromkeys(_RANKS, "tests/mla/request_rank.py: main") | _ALSO
"""Of how requests reach the ranks: they are pickled objects, whatever is done with them then."""
