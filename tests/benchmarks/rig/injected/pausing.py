"""Stock's code by turns with ours, in all threads of one process, for measurements.

What is paused stays `live`: stock's code runs in its place, and later the same functions of ours.
"""

import contextlib
import time


@contextlib.contextmanager
def paused(*names, wait_s=20.0):
    """Show stock's code in place of live patches, and of those that need them, during a block.

    It gives the ids of all that is paused. Without `names` that is every live patch. No thread may
    be in a call of them: after `wait_s` that is a TimeoutError. Work that they hold is not waited
    for, so the caller answers for that.
    """
    from sglang_perf_patches.live import engine  # the other sides of a rig run without
    from sglang_perf_patches.live.memory import with_dependents

    registry = engine._present()
    before = registry.on()
    off = with_dependents([each for each in before if each.patch.id in names or not names], before)
    _show(registry, [each for each in before if each not in off], off, wait_s)
    try:
        yield frozenset(each.patch.id for each in off)
    finally:
        _show(registry, [each for each in before if each.layers], off, wait_s)  # less what was lost


def _show(registry, members, changed, wait_s):
    from sglang_perf_patches.live.executor import executor
    from sglang_perf_patches.live.memory import forget_results

    def exchange():
        held = {each: each.drains for each in registry}
        try:
            for each in held:
                each.drains = []
            is_shown = registry.show(members)
        finally:
            for each, drains in held.items():
                each.drains = drains
        if is_shown:
            forget_results(changed)
        return is_shown

    end = time.monotonic() + wait_s
    while not executor.do(exchange, wait_s=wait_s):
        if time.monotonic() > end:
            raise TimeoutError(f"for {wait_s:g} s, a thread was in a call of what is to change")
        time.sleep(0.005)
