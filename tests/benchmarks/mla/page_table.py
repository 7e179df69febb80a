"""FlashAttention's page tables at the context limit, with the release's own kernel and backend.

``python page_table.py OUT.json``, with sglang, its kernels and this project on PYTHONPATH. Each
case runs in a process of its own, since an illegal memory access ends it. The cases are a
draft-extend or verify at the limit, eager and by the graph's tables. The memory behind the table is
set to page numbers that don't exist. Then the script checks whether a table whose rows continue in
memory gives the same bits from the kernel as one whose rows don't.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CONTEXT = 131072
POOL = 3
CASES = ("eager extend", "graph extend", "graph verify")
SIDES = ("none", "mla.page-table-bound")


def main(out: Path) -> None:
    """Run each case on stock and patched."""
    results: dict[str, Any] = {}
    running = {}
    for case in (*CASES, "same bits"):
        for side in SIDES if case != "same bits" else SIDES[:1]:
            words = [sys.executable, __file__, "--case", case, side]
            running[case, side] = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
    until = time.time() + 110
    for (case, side), process in running.items():
        try:
            output, _ = process.communicate(timeout=max(1, until - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0]
        lines = [line[7:] for line in output.splitlines() if line.startswith("RESULT ")]
        errors = [line[-300:] for line in output.splitlines() if "rror" in line][-3:]
        result = {"rc": process.returncode, "errors": errors}
        result |= json.loads(lines[-1]) if lines else {}
        results[f"{case}, {'stock' if side == 'none' else 'patched'}"] = result
        print(case, side, json.dumps(result), flush=True)
        out.write_text(json.dumps(results, indent=1) + "\n")


def one(case: str, side: str) -> None:
    """One case, in this process."""
    os.environ["SGLANG_PERF_PATCHES"] = "none"
    import torch
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    from sglang_perf_patches.live import engine
    from sglang_perf_patches.verify.comparing import installed
    from tests.proof import stubs

    stubs.lend_beside_wheels()
    from sglang_perf_patches.verify.mla import flash
    from sglang_perf_patches.verify.mla.rig import furnished

    device, heads, dim, draft = "cuda", 8, 128, flash.DRAFT

    def attend(table: Any, lengths: Any, queries: Any, seed: int = 0) -> Any:
        noise = torch.Generator(device=device).manual_seed(seed)
        pages = POOL * max(1, int(lengths.numel()) // POOL) * (CONTEXT + 64) + 64
        keys = torch.randn(pages, 1, 2, dim, device=device, generator=noise).bfloat16()
        count = int(queries[-1])
        query = torch.randn(count, heads, dim, device=device, generator=noise).bfloat16()
        attended = flash_attn_with_kvcache(
            q=query,
            k_cache=keys,
            v_cache=keys,
            page_table=table,
            cache_seqlens=lengths,
            cu_seqlens_q=queries,
            max_seqlen_q=draft,
            softmax_scale=dim**-0.5,
            causal=True,
            num_splits=0,
        )
        torch.cuda.synchronize()
        return attended

    if case == "same bits":
        said({f"bs {bs}, {length}": same(attend, bs, length) for bs, length in BITS})
        return
    if side != "none":
        report = engine.activate(side, tree=installed())
        assert report.of(side).state == "live", report.of(side).reason
    with furnished(flash.arguments(1), flash.module.__name__):
        runner = flash.runner_of(1, context=CONTEXT, requests=POOL, device=device)
        backend = flash.make(runner)
        mode = flash.VERIFY if "verify" in case else flash.EXTEND
        batch = flash.batch(runner, mode, [CONTEXT - 2], host=False)
        if case.startswith("eager"):
            poison((1, CONTEXT))
            backend.init_forward_metadata(batch)
            metadata = backend.forward_metadata
        else:
            poison((1, CONTEXT))
            backend.init_cuda_graph_state(1, draft)
            metadata = flash.replayed(backend, runner, batch)
        table, lengths = metadata.page_table, metadata.cache_seqlens_int32
        read = [flash.beyond(table, 0, page) for page in range(CONTEXT, int(lengths[0]))]
        print("reads", read, flush=True)
        bound = POOL * (CONTEXT + 64) + 64
        outside = [page for page in read if not 0 <= page < bound]
        counts = {"pages past the row": read, "not pages": len(outside), "width": table.shape[1]}
        said({**counts, "kernel": "ended the process"})
        out = attend(table, lengths, metadata.cu_seqlens_q)
        said({**counts, "kernel": "ran", "finite": bool(out[:2].isfinite().all())})


BITS = ((1, 300), (1, 80000), (16, 4000), (16, 131000), (3, 20000))


def same(attend: Any, bs: int, length: int) -> bool:
    """Whether a table whose rows continue gives the same bits as one whose rows don't."""
    import torch

    from sglang_perf_patches.sets.mla.page_table_bound.body import longer

    noise = torch.Generator().manual_seed(bs + length)
    table = torch.randint(1, bs * CONTEXT, (bs, CONTEXT), generator=noise).int().cuda()
    lengths = torch.full((bs,), length, dtype=torch.int32, device="cuda")
    queries = torch.arange(0, 4 * bs + 1, 4, dtype=torch.int32, device="cuda")
    one, other = (attend(each, lengths, queries) for each in (table, longer(table, 13)))
    return bool(torch.equal(one, other))


def poison(shape: tuple[int, int]) -> None:
    """Leave free blocks of this size, behind which memory holds no page number."""
    import torch

    wrong = 0x3FFFFFFF
    blocks = [torch.full(shape, wrong, dtype=torch.int32, device="cuda") for _ in range(64)]
    KEPT.extend(blocks[1::2])
    del blocks


KEPT: list[Any] = []


def said(found: dict[str, Any]) -> None:
    """Tell the parent."""
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--case":
        one(*sys.argv[2:])
    else:
        main(Path(sys.argv[1]))
