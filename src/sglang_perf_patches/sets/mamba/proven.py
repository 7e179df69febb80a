"""With which features of a server each mamba patch was proven, and by which check."""

from ...model.setups import all_but

_PLATFORMS = ("hip", "npu", "xpu", "musa", "hpu", "cpu", "other-device")
_GRAPH = (
    *(*_PLATFORMS, "unified-memory", "context-parallel", "dp-attention", "expert-parallel"),
    *("two-batch-overlap", "items"),
)

PROVEN = {
    "mamba.zero-sync": all_but(*_PLATFORMS),
    "mamba.lightning-rows": all_but(*_PLATFORMS),
    "mamba.mamba2-chunk-indices": all_but(*_PLATFORMS),
    "mamba.gdn-prefill-graph": all_but(*_GRAPH),
    "mamba.gdn-prefill-graph-triton": all_but(*_GRAPH),
}
