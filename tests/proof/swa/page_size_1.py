"""Tails are reserved at page size 1: no fewer requests are admitted, and all else is stock's."""

from tests.proof.swa.equivalence import random_episodes, with_room, without_room

PATCH = "swa.page-size-1"

CHECKS = {
    "with room for everything": lambda inputs: with_room(PATCH, inputs, (1,)),
    "without room": lambda inputs: without_room(PATCH, inputs, (1,)),
    "random episodes": lambda inputs: random_episodes(PATCH, inputs, (1,)),
}
