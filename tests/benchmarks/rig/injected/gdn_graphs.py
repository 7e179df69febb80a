"""For `mamba.gdn-prefill-graph`, which captures: each side replays graphs of its own.

Where the prefill graph captures patched layers, a second runner captures stock's own before the
first request. Two more sides of ``turns.py`` are here: ``flashinfer`` is stock with FlashInfer's
prefill kernel, ``unwaited`` is ours without its wait for states that come back from the host.
"""

import time

import pausing

PATCH = "mamba.gdn-prefill-graph"
_FLAGS = (
    "use_captured_forward_metadata_for_breakable_cuda_graph",
    "prefill_cuda_graph_max_batch_size",
)


def _no_wait(backend, tables):
    """In place of the patch's wait."""


class Helper:
    """The runners and kernels of a scheduler with gated delta nets."""

    does = frozenset({"loads"})

    @classmethod
    def of(cls, scheduler, switch):
        return cls(scheduler, switch) if PATCH in switch.said["patches"] else None

    def __init__(self, scheduler, switch):
        from sglang_perf_patches.sets.mamba.gdn_prefill_graph import body

        self._body, self._wait = body, body._wait_for_loads
        self._runner = scheduler.tp_worker.model_runner
        self._ours = self._stock = getattr(self._runner, "prefill_cuda_graph_runner", None)
        self._loaded = 0
        controller = getattr(scheduler.tree_cache, "cache_controller", None)
        if controller is not None:
            controller.start_loading = self._counted(controller.start_loading)
        told, backend = switch.said, self._runner.attn_backend
        linear = getattr(backend, "linear_attn_backend", None)
        self._kernels = getattr(linear, "kernel_dispatcher", None)
        self._kernel = getattr(self._kernels, "extend_kernel", None)
        told["kernel"], self._other = type(self._kernel).__name__, None
        try:
            from sglang.srt.layers.attention.linear.kernels import gdn_flashinfer as found

            if found.is_flashinfer_gdn_prefill_available():
                self._other = found.FlashInferGDNKernel()
        except Exception as error:
            told["flashinfer"] = repr(error)[:300]
        told["captured"] = bool(getattr(backend, _FLAGS[0], False))
        if told["captured"]:
            self._capture_stock(backend, told)

    def _capture_stock(self, backend, said):
        from sglang.srt.model_executor.model_runner_components import cuda_graph_setup

        said["patched memory"] = repr(getattr(self._runner, "graph_memory_usage", None))
        said["patched time"] = repr(getattr(self._runner, "graph_time_usage", None))
        kept = {name: getattr(backend, name) for name in _FLAGS}
        with pausing.paused():
            backend.use_captured_forward_metadata_for_breakable_cuda_graph = False
            backend.prefill_cuda_graph_max_batch_size = None
            began = time.time()
            graph = cuda_graph_setup.capture_prefill_graph(
                model_runner=self._runner, eager_runner=self._runner.eager_runner
            )
            self._stock = graph.runner
            said["stock memory"] = graph.memory_usage_gb
            said["stock time"] = round(time.time() - began, 1)
            for name, value in kept.items():
                setattr(backend, name, value)

    def _counted(self, start_loading):
        def counted():
            producer = start_loading()
            self._loaded += producer >= 0
            return producer

        return counted

    def show(self, off, side):
        """Take the runner and the kernel of a side."""
        self._body._wait_for_loads = _no_wait if side == "unwaited" else self._wait
        if self._kernel is not None:
            other = side == "flashinfer" and self._other is not None
            self._kernels.extend_kernel = self._other if other else self._kernel
        if self._ours is not None:
            self._runner.prefill_cuda_graph_runner = self._stock if PATCH in off else self._ours

    def loads(self):
        return self._loaded
