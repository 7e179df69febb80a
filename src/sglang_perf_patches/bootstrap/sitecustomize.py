"""First on PYTHONPATH under ``sglang-perf-patches run``: activates when a process imports sglang.

Every Python in the process tree executes this file, whatever its version, so its syntax is that of
2.7. Nothing here may raise, because an exception in ``sitecustomize`` would end each of them. If
sglang is imported and patches can't be activated, a line on stderr says so; with STRICT the process
ends. A process that never imports sglang is unchanged, and imports nothing more.
"""

import os
import sys

TYPE_CHECKING = False  # as in typing, which costs more to import than all that is done here
if TYPE_CHECKING:
    from collections.abc import Sequence  # noqa: F401 - in comments, as 2.7 has no annotations
    from importlib.machinery import ModuleSpec  # noqa: F401
    from types import ModuleType  # noqa: F401

_HERE = os.path.dirname(os.path.abspath(__file__))
_OFF = ("", "none", "off", "0", "no", "false")  # both as in model/switch.py
_ON = ("1", "true", "yes", "on")


class _Watcher:
    """The first finder on ``sys.meta_path``, until sglang is imported."""

    def find_spec(self, name, path=None, target=None):
        # type: (str, Sequence[str] | None, ModuleType | None) -> ModuleSpec | None
        """At the first import of sglang, register activation and return sglang's own spec."""
        if name != "sglang":
            return None
        sys.meta_path.remove(self)
        try:
            from sglang_perf_patches import bootstrap

            return bootstrap.register(name)
        except Exception as error:  # this may be another Python, which lacks the project
            sys.stderr.write("sglang-perf-patches: no patch is applied: " + str(error) + "\n")
            if os.environ.get("SGLANG_PERF_PATCHES_STRICT", "").strip().lower() in _ON:
                sys.stderr.flush()
                os._exit(1)  # as live/executor.py: whoever imports sglang may swallow an exception
            return None


def _chain():
    # type: () -> None
    """Run the ``sitecustomize`` that this one hides, if there is one."""
    ours = sys.modules.pop("sitecustomize")
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if "sitecustomize" not in str(error):  # theirs is there, and lacks another module
            raise
    finally:
        sys.path.insert(0, _HERE)
        sys.modules.setdefault("sitecustomize", ours)


# Older Pythons can't run any sglang that this project supports.
if sys.version_info >= (3, 10) and (
    os.environ.get("SGLANG_PERF_PATCHES", "all").strip().lower() not in _OFF
):
    sys.meta_path.insert(0, _Watcher())
_chain()
