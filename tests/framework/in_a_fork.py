"""What an attempt of a script comes to in a forked child, which may be killed or hang by it."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable


def said_by(attempt: Callable[[], str], failed: Callable[[str], str] = str) -> str:
    """What `attempt` returns in a child of its own, which has an empty cache folder.

    If one attempt kept what it read of sglang, the next would not run the code that reads it.

    Args:
        attempt: whatever it changes is gone with the child.
        failed: makes what is returned where it raises, of the traceback.

    Returns:
        an empty text where the child was killed.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
        try:
            answer = attempt()
        except BaseException:
            answer = failed(traceback.format_exc())
        with os.fdopen(writing, "w") as file:
            file.write(answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return answer
