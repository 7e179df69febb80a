"""A small Qwen3.5 with experts behind a real scheduler on the CPU, with and without prefill graphs.

Model, scheduler, pools, attention and the runner of prefill graphs are the release's; weights are
random. Stand-ins: `tests.proof.mamba.fake_cuda_graph` for CUDA graphs, and the experts, which the
release picks on a CPU by the numbers of a batch, as no capture can.
"""

import contextlib
import importlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from tests.proof.mamba import fake_cuda_graph
from tests.proof.swa import window_models
from tests.proof.swa.window_server import WindowServer, prepare

NAME = "qwen3.5-moe"
_MODELS = json.loads(Path(__file__).with_name("models.json").read_text("utf-8"))
MODEL = window_models.MODELS[NAME] = _MODELS["served"][NAME]
TEXT: dict[str, Any] = MODEL["text_config"]
IMAGE = MODEL["image_token_id"]

_LAYERS = "sglang.srt.layers"


@contextlib.contextmanager
def served(buckets: Sequence[int] = (), **asked: Any) -> Iterator[WindowServer]:
    """A server of the model, with prefill graphs of these tokens; `asked` are its arguments."""
    lend()
    # As the model's, which has what Triton's interpreter computes with.
    os.environ["SGLANG_MAMBA_CONV_DTYPE"] = "float16"
    hybrid = importlib.import_module(f"{_LAYERS}.attention.hybrid_linear_attn_backend")
    # Without a number stock makes as many states as fit into half of the memory: 17 GB here.
    few = {"max_mamba_cache_size": 64}
    settings = {"attention_backend": "triton", "dtype": "float16", **few, **asked}
    hook: Any = importlib.import_module("sglang.srt.arg_groups.mamba_hook")

    with (
        fake_cuda_graph.read_as_breakable() if buckets else contextlib.nullcontext(),
        mock.patch.object(hybrid, "check_cuda_graph_backend", return_value=bool(buckets)),
        mock.patch.object(hook, "_platform_supports_mamba_cache_extra_buffer", return_value=True),
    ):
        server = WindowServer(NAME, **settings)
    try:
        with fake_cuda_graph.on_cpu(), fake_cuda_graph.Unpinned():
            if buckets:
                fake_cuda_graph.capture_prefills(server.runner, buckets)
            yield server
    finally:
        server.close()
        experts = importlib.import_module("sglang.srt.eplb.expert_location")
        experts.set_global_expert_location_metadata(None, allow_overwrite=True)


def lend() -> None:
    """What this model needs of a CPU beyond the others."""
    prepare()
    norm: Any = importlib.import_module("sglang.kernels.ops.attention.fla.layernorm_gated")
    norm._get_sm_count = lambda _: 8
    dispatch: Any = importlib.import_module(f"{_LAYERS}.moe.token_dispatcher.standard")
    dispatch.get_device = lambda *_: "cpu"
    native: Any = importlib.import_module(f"{_LAYERS}.moe.fused_moe_native")
    native.moe_forward_native = _experts


def images_in(ids: Sequence[int]) -> Any:
    """Made up pixels for the image tokens of a prompt; None without any."""
    at = [number for number, token in enumerate(ids) if token == IMAGE]
    if not at:
        return None
    assert at == [*range(at[0], at[0] + 4)]
    batches = importlib.import_module("sglang.srt.managers.schedule_batch")
    pixels = torch.randn(16, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(3))
    item = batches.MultimodalDataItem(
        modality=batches.Modality.IMAGE,
        offsets=[(at[0], at[-1])],
        feature=pixels.to(torch.float16),
        model_specific_data={"image_grid_thw": torch.tensor([[1, 4, 4]])},
    )
    item.set_pad_value()
    places = torch.arange(len(ids)).expand(3, -1).clone()
    places[1:, at] = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]]) + at[0]
    places[0, at] = at[0]
    places[:, at[-1] + 1 :] -= 2  # an image is two places high and wide
    return batches.MultimodalInputs(
        mm_items=[item],
        im_token_id=IMAGE,
        mrope_positions=places,
        mrope_position_delta=torch.tensor([[-2]]),
    )


def _experts(layer: Any, x: torch.Tensor, topk_output: Any, _: Any) -> torch.Tensor:
    weights, ids, _ = topk_output
    total = torch.zeros(x.shape, dtype=torch.float32)
    for number in range(len(layer.w13_weight)):  # of this rank
        gate, up = functional.linear(x, layer.w13_weight[number]).chunk(2, dim=-1)
        out = functional.linear(functional.silu(gate) * up, layer.w2_weight[number])
        total = total + out * (weights * (ids == number)).sum(1, keepdim=True)
    return total.to(x.dtype)
