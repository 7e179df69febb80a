"""FlashInfer's kernel gives stock's values for one request, whose sequence it splits."""

from .gdn_prefill_graph import NEXT, ONE, with_flashinfer

CHECKS = {"one request with FlashInfer": lambda _: with_flashinfer(ONE, NEXT)}
