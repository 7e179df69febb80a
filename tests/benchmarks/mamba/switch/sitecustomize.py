"""Inside a patched server: take the whole set off and put it back between requests, on demand.

It serves the files of $TURNS_FOLDER: ``command`` holds a number and a word, and the outcome goes to
``done.NUMBER``. Where the prefill graph captures patched layers, a second runner captures stock's
own before the first request, so that each side replays its own graphs. It shadows
``tests/harness/probe``: it needs that folder too, and does what that does.
"""

import json
import os
import threading
import time
import traceback

import dummy_weights
import sides
import wrapt

from sglang_perf_patches.sets.mamba.gdn_prefill_graph import body as gdn_prefill_graph

_WAIT = gdn_prefill_graph._wait_for_loads
_FOLDER = os.environ.get("TURNS_FOLDER", "")


def _no_wait(backend, tables):
    """In place of the patch's wait."""


class _Sides:
    """What differs between the sides in this process."""

    def __init__(self, scheduler):
        self.sides = sides.Sides()
        self.loaded = 0
        controller = getattr(scheduler.tree_cache, "cache_controller", None)
        if controller is not None:
            controller.start_loading = self._counted(controller.start_loading)
        self.runner = scheduler.tp_worker.model_runner
        self.pool = self.runner.req_to_token_pool.mamba_pool
        self.graphs = {"patched": getattr(self.runner, "prefill_cuda_graph_runner", None)}
        self.said = {"patches": sorted(self.sides.patches)}
        self.kernels = {}
        backend = self.runner.attn_backend
        linear = getattr(backend, "linear_attn_backend", None)
        dispatcher = getattr(linear, "kernel_dispatcher", None)
        if dispatcher is not None and hasattr(dispatcher, "extend_kernel"):
            self.dispatcher = dispatcher
            for side in ("patched", "less", "stock"):
                self.kernels[side] = dispatcher.extend_kernel
            self.said["kernel"] = type(dispatcher.extend_kernel).__name__
            try:
                from sglang.srt.layers.attention.linear.kernels import gdn_flashinfer as found

                if found.is_flashinfer_gdn_prefill_available():
                    self.kernels["flashinfer"] = found.FlashInferGDNKernel()
            except Exception as error:
                self.said["flashinfer"] = repr(error)[:300]
        self.said["captured"] = bool(
            getattr(backend, "use_captured_forward_metadata_for_breakable_cuda_graph", False)
        )
        if self.said["captured"]:
            self._capture_stock(backend)
        self.graphs.setdefault("stock", self.graphs["patched"])
        self.graphs.setdefault("less", self.graphs["patched"])
        self.graphs.setdefault("flashinfer", self.graphs["stock"])

    def _capture_stock(self, backend):
        from sglang.srt.model_executor.model_runner_components import cuda_graph_setup

        usage = getattr(self.runner, "graph_memory_usage", None)
        self.said["patched memory"] = repr(usage)
        self.said["patched time"] = repr(getattr(self.runner, "graph_time_usage", None))
        names = (
            "use_captured_forward_metadata_for_breakable_cuda_graph",
            "prefill_cuda_graph_max_batch_size",
        )
        kept = {name: getattr(backend, name) for name in names}
        self.turn("off")
        backend.use_captured_forward_metadata_for_breakable_cuda_graph = False
        backend.prefill_cuda_graph_max_batch_size = None
        began = time.time()
        made = cuda_graph_setup.capture_prefill_graph(
            model_runner=self.runner, eager_runner=self.runner.eager_runner
        )
        self.graphs["stock"] = made.runner
        self.said["stock memory"] = made.memory_usage_gb
        self.said["stock time"] = round(time.time() - began, 1)
        for name, value in kept.items():
            setattr(backend, name, value)
        self.turn("patched")

    def _counted(self, start_loading):
        def counted():
            producer = start_loading()
            self.loaded += producer >= 0
            return producer

        return counted

    def turn(self, side):
        gdn_prefill_graph._wait_for_loads = _no_wait if side == "unwaited" else _WAIT
        left_out = {"patched": [], "unwaited": [], "less": [os.environ.get("LEFT_OUT", "")]}
        self.sides.show(left_out.get(side))
        side = "patched" if side == "unwaited" else side
        if side in self.kernels:
            self.dispatcher.extend_kernel = self.kernels[side]
        if self.graphs.get(side) is not None:
            self.runner.prefill_cuda_graph_runner = self.graphs[side]
        return side

    def states(self):
        cache = self.pool.mamba_cache
        return [held for held in (*cache.conv, cache.temporal) if held.numel()]

    def zero(self):
        for held in self.states():
            held.zero_()
        return "zero"

    def sums(self):
        """One number for each slot of each layer, of all the bits in it."""
        import torch

        found = []
        for held in self.states():
            for layer in held:
                bits = layer.reshape(layer.shape[0], -1)
                bits = bits.view({2: torch.int16, 4: torch.int32}[bits.element_size()])
                weight = torch.arange(bits.shape[1], device=bits.device) % 8191 + 1
                sums = [(part.long() * weight).sum(1) for part in bits.split(64)]
                found.append(torch.cat(sums)[1:].tolist())  # slot 0 is of rows without a request
        return found

    def serve(self):
        import torch

        last = None
        while True:
            time.sleep(0.004)
            try:
                with open(f"{_FOLDER}/command") as file:
                    number, word = file.read().split()
            except (OSError, ValueError):
                continue
            if number == last:
                continue
            last = number
            try:
                with torch.inference_mode():
                    torch.cuda.synchronize()
                    does = {
                        "zero": self.zero,
                        "sums": self.sums,
                        "said": lambda: self.said,
                        "loads": lambda: self.loaded,
                    }
                    answer = does[word]() if word in does else self.turn(word)
                    torch.cuda.synchronize()
            except Exception:
                answer = traceback.format_exc()
            with open(f"{_FOLDER}/part", "w") as file:
                json.dump(answer, file)
            os.rename(f"{_FOLDER}/part", f"{_FOLDER}/done.{number}")


def _started(wrapped, instance, args, kwargs):
    try:
        sides = _Sides(instance)
        threading.Thread(target=sides.serve, daemon=True).start()
    except Exception:
        traceback.print_exc()
    return wrapped(*args, **kwargs)


def _hook(module):
    for name in ("event_loop_overlap", "event_loop_normal"):
        wrapt.wrap_function_wrapper(module, f"Scheduler.{name}", _started)


if os.environ.get("LENT_NAMES"):
    from sglang_perf_patches.proof import lent

    lent.lend_beside_wheels()
if os.environ.get("DUMMY_WEIGHTS"):
    dummy_weights.enlarge()
if _FOLDER:
    wrapt.register_post_import_hook(_hook, "sglang.srt.managers.scheduler")
