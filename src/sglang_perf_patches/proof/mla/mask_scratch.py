"""TRT-LLM MLA builds the same trees with a mask of kilobytes, which stays inside its buffer."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from .. import Different, Inputs
from ..comparing import same
from . import trees, wheels
from .rig import furnished, model_runner, server_args

PATCH = "mla.mask-scratch"
CAPTURED = 4

MODULE, PARENT = wheels.trtllm()
MODULES = (PARENT.__name__, MODULE.__name__)
trees.lend()

Case = dict[str, Any]

EDGES: tuple[Case, ...] = (
    {"draft": 4, "requests": [(30, (0, 1, 2)), (9, (0, 0, 1))], "draft_runner": False},
    {"draft": 1, "requests": [(5, ())], "draft_runner": False},
    {"draft": 3, "requests": [(5, (0, 1))] * (CAPTURED + 2), "draft_runner": False},
    {"draft": 3, "requests": [(5, (0, 1))], "draft_runner": True},
)


def compare(inputs: Inputs) -> int:
    """Compare the trees of batches, of some larger than the captured ones too."""
    return same(PATCH, build, [*EDGES, *inputs(drawn)])


def drawn(random: Random) -> Case:
    """A batch to verify."""
    draft = random.randint(1, 5)
    return {
        "draft": draft,
        # Stock writes past its buffer where a batch is much larger than the captured ones.
        "requests": trees.some_requests(random, CAPTURED + 2, draft),
        "draft_runner": random.random() < 0.3,
    }


def make(draft: int | None, *, skip_prefill: bool = False, draft_runner: bool = False) -> Any:
    """A TRT-LLM MLA backend with its graph state."""
    arguments = server_args(speculative_num_draft_tokens=draft, page_size=32)
    runner = model_runner(arguments, mla=True, is_draft_worker=draft_runner)
    backend = MODULE.TRTLLMMLABackend(runner, skip_prefill=skip_prefill)
    backend.init_cuda_graph_state(CAPTURED, CAPTURED * (draft or 1))
    return backend


def build(case: Case) -> dict[str, Any]:
    """Build trees; all of what a verify reads of them, and the backend's own state."""
    draft, requests = case["draft"], case["requests"]
    with furnished(server_args(speculative_num_draft_tokens=draft, page_size=32), *MODULES):
        backend = make(draft, draft_runner=case["draft_runner"])
        mask, positions = backend.get_verify_buffers_to_fill_after_draft()
        if mask is None:
            if not case["draft_runner"]:
                raise Different(f"{PATCH}: the target has no mask")
            return {"mask": None}
        guarded = torch.full((mask.numel() + 512,), 7, dtype=torch.uint8)
        backend.cuda_graph_custom_mask = guarded[: mask.numel()].view(mask.dtype)
        mask, positions = backend.get_verify_buffers_to_fill_after_draft()
        lengths = torch.tensor([length for length, _ in requests])
        made = trees.build(lengths, trees.parents(requests, draft), draft, mask, positions)
        if not bool((guarded[mask.numel() :] == 7).all()):
            raise Different(f"{PATCH}: written past the mask")
        if backend.num_draft_tokens != draft:
            raise Different(f"{PATCH}: the backend drafts {backend.num_draft_tokens} tokens")
        state = {
            name: (tuple(value.shape), str(value.dtype))
            for name, value in vars(backend).items()
            if isinstance(value, torch.Tensor) and name != "cuda_graph_custom_mask"
        }
        return {"made": list(made[1:]), "state": state}
