"""FlashInfer's prefill kernel on a CPU: stock's class around it, and what stands for the kernel.

The kernel itself is compiled for Hopper GPUs. What stands for it computes the gated delta rule
token by token. It refuses what the kernel refuses, and its results depend on the numbers of
requests and of tokens, by which the kernel picks its algorithm: where a call differs in them,
results differ.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from tests.proof.mamba import fake_cuda_graph, waits


def kernel(counter: waits.Counter, *, is_captured: bool = False) -> Any:
    """Stock's FlashInferGDNKernel, as it is on a Hopper GPU but for the kernel.

    `is_captured`: whether the call of one request may be in a graph, with unused rows.
    """
    module = importlib.import_module("sglang.srt.layers.attention.linear.kernels.gdn_flashinfer")
    stocks = object.__new__(module.FlashInferGDNKernel)
    stocks.use_state_pool = stocks._prefill_needs_fp32_state = False
    stocks._prefill_fn = lambda **arguments: _prefill(counter, is_captured, **arguments)
    return stocks


def chunk_length(tokens: int) -> int:
    """Into chunks of how many tokens one request is split where the call may be captured."""
    return 64 if tokens <= 68 else 128


def _prefill(
    counter: waits.Counter, is_captured: bool, **arguments: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    def run() -> None:
        with counter.paused():
            _gated_delta_rule(is_captured, **arguments)

    tape = fake_cuda_graph.Tape.recording
    if tape is None:
        run()
    else:
        assert is_captured, "the kernel is called within a capture"
        tape.steps.append(run)
    return arguments["output"], arguments["output_state"]


def _gated_delta_rule(
    is_captured: bool,
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None,
    initial_state: torch.Tensor,
    output_final_state: bool,
    cu_seqlens: torch.Tensor,
    use_qk_l2norm_in_kernel: bool,
    output: torch.Tensor,
    output_state: torch.Tensor,
    state_checkpoints: torch.Tensor | None,
    checkpoint_cu_starts: torch.Tensor | None,
    checkpoint_every_n_tokens: int,
) -> None:
    tokens, heads, width = v.shape
    ends = cu_seqlens.tolist()
    requests = len(ends) - 1
    assert scale is None
    assert output_final_state
    assert not use_qk_l2norm_in_kernel
    assert cu_seqlens.dtype == torch.int64
    assert ends[0] == 0
    if is_captured and requests == 1:
        assert not any(rows[ends[-1] :].any() for rows in (q, k, v))
    else:
        assert ends[-1] == tokens
    assert g.shape == beta.shape == (tokens, heads)
    assert g.dtype == beta.dtype == torch.float32
    assert output.shape == v.shape
    for each in (q, k, v, g, beta, output, initial_state, output_state):
        assert each.is_contiguous()
    for state in (initial_state, output_state):
        assert state.shape == (requests, heads, width, width)
        assert state.dtype == torch.float32
    every = checkpoint_every_n_tokens
    assert (every > 0) == (state_checkpoints is not None) == (checkpoint_cu_starts is not None)
    first = checkpoint_cu_starts.tolist() if checkpoint_cu_starts is not None else []
    split = chunk_length(tokens) // 64 if is_captured and requests == 1 else tokens
    picked = 1 + (requests * 7 + split) % 5 / 8
    for row in range(requests):
        state = initial_state[row].clone()
        for count, token in enumerate(range(ends[row], ends[row + 1]), 1):
            state *= g[token].view(-1, 1, 1)
            key = k[token].float().repeat_interleave(heads // k.shape[1], 0)
            query = q[token].float().repeat_interleave(heads // q.shape[1], 0)
            new = v[token].float() - (state * key.unsqueeze(1)).sum(-1)
            state += (new * beta[token].unsqueeze(-1)).unsqueeze(-1) * key.unsqueeze(1)
            out = (state * query.unsqueeze(1)).sum(-1) * width**-0.5 * picked
            output[token] = out.to(output.dtype)
            if every and count % every == 0:
                assert state_checkpoints is not None
                state_checkpoints[first[row] + count // every - 1] = state
        output_state[row] = state
