"""The same with FlashInfer's kernel for one request, whose sequence that kernel splits."""

from .gdn_prefill_graph import ONE, with_flashinfer

CHECKS = {"one request with FlashInfer": lambda _: with_flashinfer(ONE)}
