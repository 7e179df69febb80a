"""Play the proof of the broadcast in other set-ups: ``python request_setups.py FEATURES``.

Like `play_setups`, for a proof that has nothing on by itself: all features are published, those of
states with a model that has states.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "releases"))

import play_setups

import configurations

play_setups.OWN = ()  # type: ignore[assignment]

if __name__ == "__main__":
    if "tracked-states" in sys.argv[1]:
        play_setups.MODEL |= configurations.MODELS["next"]
    play_setups.main(sys.argv[1], ["mla.request-broadcast"])
