"""FlashInfer's kernel gives stock's values for several requests, which it does not split."""

from .gdn_prefill_graph import SEVERAL, with_flashinfer

CHECKS = {"several requests with FlashInfer": lambda _: with_flashinfer(SEVERAL)}
