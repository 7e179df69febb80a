"""With which features of a server each mla patch was proven, and by which check."""

from ...model.setups import all_but

_PLATFORMS = ("hip", "npu", "xpu", "musa", "hpu", "other-device")
_TABLES = (*_PLATFORMS, "unified-memory", "context-parallel")
_VERIFY = (*_TABLES, "two-batch-overlap", "ngram", "pipeline")
_EAGLE = (*_VERIFY, "dflash", "frozen-kv-mtp", "other-speculation", "adaptive-drafts")

PROVEN = {
    "mla.draft-metadata": all_but(*_TABLES),
    "mla.sync-opt-out": all_but(*_EAGLE, "forward-metrics"),
    "mla.draft-extend-graph": all_but(
        *(*_EAGLE, "draft-vocabulary", "dp-attention", "expert-parallel")
    ),
    "mla.draft-extend-metadata": all_but(*_TABLES),
    "mla.page-table-bound": all_but(*_TABLES),
}
