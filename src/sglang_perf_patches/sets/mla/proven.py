"""With which features of a server each mla patch was proven, and by which check.

``verify`` is the patch's own case, played with the feature's arguments in what it asks of the
server (``tests/releases/test_played.py``).
"""

_ALL = (
    *("eagle", "standalone", "pages", "tensor-parallel", "data-parallel"),
    *("no-overlap", "no-cuda-graphs", "no-radix-cache", "no-window-pool", "whole-prefills"),
    *("lora", "quantised-kv", "quantised-weights", "priorities", "sessions"),
    *("decode-server", "retracted-in-tensors"),
)
_METADATA = (*_ALL, "hierarchical-cache", "returned-insides", "draft-vocabulary")
"""Of what is made of lengths and tables alone: no layer runs in it."""

PROVEN = {
    name: dict.fromkeys(features, "verify")
    for name, features in {
        "mla.draft-metadata": (*_METADATA, "deterministic", "forward-metrics"),
        "mla.sync-opt-out": (*_METADATA, "deterministic"),
        "mla.draft-extend-graph": (*_ALL, "deterministic", "forward-metrics"),
        "mla.draft-extend-metadata": (*_METADATA, "deterministic", "forward-metrics"),
        "mla.page-table-bound": (*_METADATA, "deterministic", "forward-metrics"),
    }.items()
}
