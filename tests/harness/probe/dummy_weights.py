"""Dummy weights that a server's outputs depend on.

Stock's dummy weights are so small that the last token alone decides, and the embedding and the head
are the same matrix. A server would repeat a token whatever its attention reads.
"""

import zlib
from typing import Any

import wrapt


def enlarge() -> None:
    """Give every model that loads dummy weights larger ones, the same in every server."""
    wrapt.register_post_import_hook(
        lambda module: wrapt.wrap_function_wrapper(module, "initialize_dummy_weights", _fill),
        "sglang.srt.model_loader.weight_utils",
    )


def _fill(wrapped: Any, _: Any, args: Any, kwargs: Any) -> None:
    """Fill as stock does, then again: each parameter from its own seed, which is its name's."""
    import torch

    wrapped(*args, **kwargs)
    model = args[0] if args else kwargs["model"]
    for name, value in model.state_dict().items():
        if not torch.is_floating_point(value):
            continue
        generator = torch.Generator(device=value.device)
        generator.manual_seed(zlib.crc32(name.encode()))
        if value.dim() >= 2:
            value.normal_(0, 1024**-0.5, generator=generator)
        elif "norm" in name:
            value.fill_(1.0)
        elif name.endswith(".A"):  # of Mamba2, whose states grow without bound if it is positive
            value.uniform_(-1.0, -0.1, generator=generator)
        else:  # biases and sinks
            value.uniform_(-0.1, 0.1, generator=generator)
