"""What an attempt of a script comes to in a forked child, which may be killed or hang by it."""

from __future__ import annotations

import json
import os
import tempfile
import traceback
from collections.abc import Callable
from typing import Any


def outcome_of(attempt: Callable[[], Any], **about: Any) -> Any:
    """What `attempt` returns, as JSON has it, in a child of its own with an empty cache folder.

    If one attempt kept what it read of sglang, the next would not run the code that reads it.

    Args:
        attempt: whatever it changes is gone with the child.
        about: returned with the ``traceback`` where it raises.

    Returns:
        None where the child was killed.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
        try:
            answer = attempt()
        except BaseException:
            answer = {**about, "traceback": traceback.format_exc()}
        with os.fdopen(writing, "w") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else None
