"""Inside a patched server: while $SWITCH_FILE exists, the patch $SWITCH_PATCH leaves all to stock.

It is for patches of this set that ask ``Served`` at each call. It shadows ``tests/support/probe``:
it needs that folder too, and does what that does.
"""

import os

import dummy_weights
import wrapt

_PATCH, _FILE = os.environ.get("SWITCH_PATCH"), os.environ.get("SWITCH_FILE", "")


def _hook(module):
    def around(wrapped, instance, args, kwargs):
        patching = instance._gate.__self__
        return wrapped() and not (patching._member.patch.id == _PATCH and os.path.exists(_FILE))

    wrapt.wrap_function_wrapper(module, "Served.__call__", around)


if os.environ.get("DUMMY_WEIGHTS"):
    dummy_weights.enlarge()
if _PATCH:
    wrapt.register_post_import_hook(_hook, "sglang_perf_patches.sets.mla.situations")
