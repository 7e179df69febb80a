"""With which features of a server each swa patch was proven, and by which check."""

from collections.abc import Mapping

from ...model.setups import all_but

_POOLS = (
    *("sparse-kv", "hierarchical-cache", "other-cache", "unified-memory", "page-major"),
    *("window-replay", "context-parallel", "sessions"),
)
"""Other pools or allocators, or other owners of their slots, than any check has."""

_QUEUE = (
    *_POOLS,
    *("decode-radix-cache", "decode-offload", "late-slots", "other-disaggregation"),
    "retracted-elsewhere",
)
_ADMISSION = (*_QUEUE, "pipeline", "dp-attention")
"""Where admission is ours: one rank alone was played."""

_EPISODES = "tests/swa/machine.py: play"


def _decoding(patch: str, *gated: str, **played: str) -> Mapping[str, str]:
    """A patch that the decode worker of the proof plays: without a radix cache, in both backups."""
    return {
        **all_but(*gated),
        "decode-server": f"verify {patch}",
        "no-radix-cache": f"verify {patch}",
        "pages": _EPISODES,
        "retracted-in-tensors": _EPISODES,
        **{name.replace("_", "-"): check for name, check in played.items()},
    }


PROVEN = {
    # Up to 0.5.11 it leaves pipelines to stock by itself.
    "swa.tail-prealloc": _decoding(
        "swa.tail-prealloc", *_QUEUE, eagle=_EPISODES, pipeline=_EPISODES, dp_attention=_EPISODES
    ),
    "swa.page-size-1": _decoding(
        "swa.page-size-1", *_QUEUE, eagle=_EPISODES, pipeline=_EPISODES, dp_attention=_EPISODES
    ),
    "swa.window-bounded-admission": _decoding("swa.window-bounded-admission", *_ADMISSION),
    "swa.idle-admission": _decoding(
        "swa.idle-admission",
        *_ADMISSION,
        eagle="tests/swa/checks.py: idle_is_served",
        draft_trees="tests/swa/checks.py: the_bound_holds_with_drafts",
    ),
    "swa.pool-ratio": {
        **all_but(
            *("prefill-server", "decode-server", "pipeline", "hierarchical-cache"),
            *("whole-prefills", "unified-memory", "no-window-pool"),
        ),
        "pages": "verify swa.pool-ratio",
        "no-radix-cache": "verify swa.pool-ratio",
    },
    "swa.evict-before-retract": _decoding("swa.evict-before-retract", *_POOLS),
}
