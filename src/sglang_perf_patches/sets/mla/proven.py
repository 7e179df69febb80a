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
_BOOTED = "tests/mla/test_ranks.py: test_ranks_get_the_same_requests_with_further_features"
_PLAYED = "tests/mla/test_ranks.py: test_the_proof_is_played_with_further_features"
_ON_A_CPU = (
    *("tensor-parallel", "data-parallel", "expert-parallel", "expert-all-to-all"),
    *("no-overlap", "no-cuda-graphs", "no-window-pool", "whole-prefills"),
    *("multimodal", "mixed-chunks"),
)
_NOT_ON_A_CPU = (
    *("eagle", "standalone", "draft-trees", "draft-vocabulary", "pages"),
    *("lora", "quantised-kv", "quantised-weights", "priorities", "sessions", "deterministic"),
    *("prefill-server", "hierarchical-cache", "returned-insides", "forward-metrics"),
    *("tracked-states", "other-gpu"),
)
REQUESTS = {
    **dict.fromkeys((*_ON_A_CPU, "no-radix-cache"), _BOOTED),
    **dict.fromkeys((*_NOT_ON_A_CPU, "decode-server", "retracted-in-tensors"), _PLAYED),
}
"""Of how requests reach the ranks. Whole servers of two ranks where a CPU can run them; else the
patch's proof, with real ranks and the receiver of a server that has published the feature."""
NUMBERS = dict.fromkeys((*_ON_A_CPU, *_NOT_ON_A_CPU), _PLAYED)
"""Of numbers that ranks agree on: the patch's proof, with real ranks."""
