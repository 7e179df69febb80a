"""How long a rank is in gloo's collectives, for `shares.py`: RIG_EXCHANGES is a folder for it."""

import json
import os
import threading
import time
from functools import partial

import wrapt

_FOLDER = os.environ.get("RIG_EXCHANGES", "")
_TENSORS = (
    *("all_gather", "all_gather_into_tensor", "all_gather_single"),
    *("all_reduce", "broadcast", "gather"),
)
_OBJECTS = ("all_gather_object", "barrier", "broadcast_object_list", "gather_object")
_EACH_S = 0.02


def watch():
    if _FOLDER:
        wrapt.register_post_import_hook(_hook, "torch.distributed")


def _hook(module):
    spent = {}
    threading.Thread(target=_write, args=(spent,), daemon=True).start()
    for name in (each for each in (*_TENSORS, *_OBJECTS) if hasattr(module, each)):
        wrapt.wrap_function_wrapper(module, name, partial(_timed, spent, name))


def _timed(spent, name, wrapped, _, args, kwargs):
    values = (*args, *kwargs.values())
    if name in _TENSORS and not any(_is_on_host(value) for value in values):
        return wrapped(*args, **kwargs)
    began = time.monotonic()
    try:
        return wrapped(*args, **kwargs)
    finally:
        calls, seconds = spent.get(name, (0, 0.0))
        spent[name] = calls + 1, seconds + time.monotonic() - began


def _is_on_host(value):
    first = value[0] if isinstance(value, list) and value else value
    return getattr(getattr(first, "device", None), "type", "") == "cpu"


def _write(spent):
    with open(f"{_FOLDER}/{os.getpid()}", "w", buffering=1) as file:
        while True:
            time.sleep(_EACH_S)
            if spent:
                file.write(json.dumps([time.monotonic(), dict(spent)]) + "\n")
