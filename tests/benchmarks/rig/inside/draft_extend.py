"""For `mla.draft-extend-graph`, which captures: where it is off, its runner declines each batch.

Then stock's eager code runs. The patch itself stays, with its graphs.
"""

import wrapt

PATCH = "mla.draft-extend-graph"
_OFF = [False]


def _can(wrapped, _, args, kwargs):
    return False if _OFF[0] else wrapped(*args, **kwargs)


def _hook(module):
    kind = module.EAGLEDraftExtendCudaGraphRunner
    name = "can_run_graph" if "can_run_graph" in vars(kind) else "can_run"
    wrapt.wrap_function_wrapper(kind, name, _can)


def watch():
    """Ask at each batch from now on."""
    wrapt.register_post_import_hook(
        _hook, "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner"
    )


class Helper:
    """Keeps the patch on."""

    keeps = frozenset({PATCH})
    does = frozenset()

    @classmethod
    def of(cls, scheduler, switch):
        """None where the patch is not live."""
        return cls() if PATCH in switch.said["patches"] else None

    def show(self, off, side):
        """Decline, or not."""
        _OFF[0] = PATCH in off
