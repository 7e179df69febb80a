"""Whether NIXL moves bytes between two GPUs' memories, process to process, on this machine.

usage: python transfer_check.py SOURCE DESTINATION      (GPU numbers, or ``cpu cpu``)

Prints one JSON object: whether all bytes arrived, and at what rate. It returns 0 if they did. UCX's
own setting $UCX_TLS chooses which ways it may take.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from typing import Any

SIZE, PIECES = 64 << 20, 256


def main(source: str, destination: str) -> int:
    """Start both sides and tell the outcome."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    results = context.Queue()
    sides = [
        context.Process(target=_send, args=(source, destination, ours, results)),
        context.Process(target=_receive, args=(destination, theirs, results)),
    ]
    for side in sides:
        side.start()
    result: dict[str, Any] = {"ok": False, "ways": os.environ.get("UCX_TLS", "all")}
    until = time.monotonic() + 60
    for _ in sides:
        while time.monotonic() < until and results.empty() and any(s.is_alive() for s in sides):
            time.sleep(0.1)
        if not results.empty():
            result |= results.get()
    for side in sides:
        side.kill()
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


def _agent(name: str, memory: Any) -> Any:
    from nixl._api import nixl_agent, nixl_agent_config

    threads = 8 if name == "source" else 0
    agent = nixl_agent(name, nixl_agent_config(backends=[], num_threads=threads))
    agent.create_backend("UCX", {"num_threads": str(threads)} if threads else {})
    address, kind, device = _place(memory)
    assert agent.register_memory([(address, SIZE, device, "")], kind)
    return agent


def _place(memory: Any) -> tuple[int, str, int]:
    on_gpu = memory.device.type == "cuda"
    return memory.data_ptr(), "VRAM" if on_gpu else "DRAM", memory.device.index if on_gpu else 0


def _memory(where: str, fill: bool) -> Any:
    import torch

    device = "cpu" if where == "cpu" else f"cuda:{where}"
    values = torch.arange(SIZE, dtype=torch.int32).to(torch.uint8)
    return (values if fill else torch.zeros_like(values)).to(device)


def _pieces(address: int, device: int, reverse: bool) -> Any:
    import numpy

    length = SIZE // PIECES
    starts = [address + n * length for n in range(PIECES)]
    return numpy.array([[at, length, device] for at in (starts[::-1] if reverse else starts)])


def _send(source: str, destination: str, pipe: Any, results: Any) -> None:
    memory = _memory(source, True)
    agent = _agent("source", memory)
    address, kind, device = _place(memory)
    described, there, there_kind, there_device = pipe.recv()
    peer = agent.add_remote_agent(described)
    peer = peer.decode() if isinstance(peer, bytes) else peer
    took = []
    for number in range(5):
        began = time.monotonic()
        transfer = agent.initialize_xfer(
            "WRITE",
            agent.get_xfer_descs(_pieces(address, device, False), kind),
            agent.get_xfer_descs(_pieces(there, there_device, True), there_kind),
            peer,
            f"{number}".encode(),
        )
        state = agent.transfer(transfer)
        while state not in ("DONE", "ERR"):
            state = agent.check_xfer_state(transfer)
        took.append(time.monotonic() - began)
    results.put({"state": state, "gb_per_s": round(SIZE / min(took) / 1e9, 2)})
    pipe.send("done")
    time.sleep(30)


def _receive(destination: str, pipe: Any, results: Any) -> None:
    import torch

    memory = _memory(destination, False)
    agent = _agent("destination", memory)
    pipe.send((agent.get_agent_metadata(), *_place(memory)))
    told = 0
    while told < 5:
        told += sum(map(len, agent.get_new_notifs().values()))
    pipe.recv()
    if memory.device.type == "cuda":
        torch.cuda.synchronize(memory.device)
    wanted = _memory("cpu", True).view(PIECES, -1).flip(0).flatten()
    results.put({"ok": bool(memory.cpu().equal(wanted))})
    time.sleep(30)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
