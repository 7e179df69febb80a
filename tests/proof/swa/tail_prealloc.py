"""Tails are reserved at page sizes above 1: no fewer requests are admitted, all else is stock's."""

from tests.proof.swa.equivalence import PAGED, random_episodes, with_room, without_room

PATCH = "swa.tail-prealloc"

CHECKS = {
    "with room for everything": lambda inputs: with_room(PATCH, inputs, PAGED),
    "without room": lambda inputs: without_room(PATCH, inputs, PAGED),
    "random episodes": lambda inputs: random_episodes(PATCH, inputs, PAGED),
}
