"""FlashInfer's kernel gives stock's values for several requests, with states updated in place."""

from .gdn_prefill_graph import SEVERAL, with_flashinfer

CHECKS = {"several requests with FlashInfer": lambda _: with_flashinfer(SEVERAL)}
