"""Play the proof of a patch of ranks in other set-ups: ``request_setups.py FEATURES PATCH``.

Like `play_setups`, for a proof that has nothing on by itself: all features are published, those of
states with a model that has states.
"""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "releases"))

import play_setups

import configurations
import feature_examples

play_setups.OWN = ()  # type: ignore[assignment]
feature_examples._OTHERS["draft-trees"] = {
    "speculative_algorithm": "EAGLE",
    "speculative_eagle_topk": 2,
    "speculative_num_steps": 2,
    "speculative_num_draft_tokens": 4,
}

if __name__ == "__main__":
    if "tracked-states" in sys.argv[1]:
        play_setups.MODEL |= configurations.MODELS["next"]
        hook = importlib.import_module("sglang.srt.arg_groups.mamba_hook")
        hook._platform_supports_mamba_cache_extra_buffer = lambda: True  # type: ignore[attr-defined]
    play_setups.main(sys.argv[1], sys.argv[2:])
