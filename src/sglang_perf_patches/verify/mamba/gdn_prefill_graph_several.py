"""The same with FlashInfer's kernel for several requests, whose states it updates in place."""

from .gdn_prefill_graph import SEVERAL, with_flashinfer

CHECKS = {"several requests with FlashInfer": lambda _: with_flashinfer(SEVERAL)}
