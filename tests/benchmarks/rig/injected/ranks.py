"""What every rank of a server does for `fleet.py`, by the Engine's ``collective_rpc``.

OFF_RANK: the number of a rank that takes its patches off before it makes its attention backends.
"""

import json
import os
import zlib

import states
import wrapt


def watch():
    wrapt.register_post_import_hook(_serve, "sglang.srt.managers.scheduler")
    if os.environ.get("OFF_RANK"):
        wrapt.register_post_import_hook(_take_off, "sglang.srt.model_executor.model_runner")


def _serve(module):
    def rig_zero(self):
        states.Helper.of(self, None).zero()

    def rig_sums(self, file):
        """One number for each layer of all the bits in its slots, whichever has them."""
        import torch
        import torch.distributed as dist

        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a step may still run on another stream
        layers = states.Helper.of(self, None).sums()
        sums = [zlib.crc32(repr(sorted(slots)).encode()) for slots in layers]
        with open(f"{file}.{dist.get_rank()}", "w") as out:
            json.dump({"sums": sums, "written": sum(value != 0 for value in layers[-1])}, out)

    module.Scheduler.rig_zero, module.Scheduler.rig_sums = rig_zero, rig_sums


def _take_off(module):
    def load_model(wrapped, runner, args, kwargs):
        import torch.distributed as dist

        import sglang_perf_patches

        if dist.get_rank() == int(os.environ["OFF_RANK"]):
            sglang_perf_patches.deactivate()
            print("OFF_RANK", dist.get_rank(), sglang_perf_patches.report(), flush=True)
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module, "ModelRunner.load_model", load_model)
