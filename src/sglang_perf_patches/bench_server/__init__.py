"""``bench server``: an operator's own server, started in turns with patches and without.

`turns` starts the command in turns and hands each boot to `boot`, which waits until the server is
ready, compares greedy tokens (`tokens`), sends it requests with sglang's own ``bench_serving``
(`load`), reads its memory (`processes`) and its records (`patches`), and leaves no process. `noise`
decides which differences are more than chance. `outcome` draws the conclusion, and `shown`
presents it.
"""

from __future__ import annotations


class BenchError(Exception):
    """The comparison can't continue; the message is one sentence for the operator."""


class UsageError(BenchError):
    """The comparison can't start with these arguments."""
