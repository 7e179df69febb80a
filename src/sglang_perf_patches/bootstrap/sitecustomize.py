"""First on PYTHONPATH under ``sglang-perf-patches run``: activate when a process imports sglang.

Whatever goes wrong here, the interpreter starts: an exception out of ``sitecustomize`` would end
every Python of the process tree. Processes that never import sglang stay as they are.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _register() -> None:
    """Ask to be called when sglang has been imported, with this project importable."""
    selection = os.environ.get("SGLANG_PERF_PATCHES", "all").strip().lower()
    if selection in {"", "none", "off", "0", "no", "false"}:
        return
    try:
        from sglang_perf_patches import bootstrap
    except ImportError:
        return  # another Python, without this project: not ours to change
    bootstrap.register()


def _chain() -> None:
    """Run the ``sitecustomize`` that this one hides, under its own name, if there is one."""
    elsewhere = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _register()
except Exception as error:
    print(f"sglang-perf-patches: nothing is applied: {error}", file=sys.stderr)
_chain()
