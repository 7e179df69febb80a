"""``bench server``: an operator's own server, started in turns with patches and without.

`boot` starts each server and waits until it is ready, compares greedy tokens (`tokens`), sends it
requests with sglang's own ``bench_serving`` (`load`), reads its memory and its records (`patches`),
and leaves no process. `outcome` decides which differences are more than chance, and presents that.
"""

from __future__ import annotations

from ..model.errors import OperatorError


class BenchError(OperatorError):
    """A boot failed; the message is one sentence, without private words and paths."""
