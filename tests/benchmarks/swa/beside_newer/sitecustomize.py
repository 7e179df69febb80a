"""In every process with this folder on PYTHONPATH: an older sglang starts beside newer packages.

A name that the release imports from a wheel of kernels, and that the wheel no longer has, is stood
in for; calling it raises. A configuration that the release registers, and that Transformers brings
by now, is the release's. The ``sitecustomize`` behind this one runs first.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

import wrapt

_HERE = os.path.dirname(os.path.abspath(__file__))
_WHEELS = ("sgl_kernel", "flashinfer")


def _go_on():
    """Run the ``sitecustomize`` that this one hides."""
    places = [os.path.abspath(place or ".") for place in sys.path]
    spec = PathFinder.find_spec("sitecustomize", sys.path[places.index(_HERE) + 1 :])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _lend(module):
    def stand_in(name):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_, **__):
            raise NotImplementedError(f"{module.__name__} has no {name} any more")

        return missing

    if not hasattr(module, "__getattr__"):
        module.__getattr__ = stand_in


def _register_again(module):
    mapping = module.CONFIG_MAPPING
    register = mapping.register
    mapping.register = lambda key, value, exist_ok=False: register(key, value, exist_ok=True)


_go_on()
wrapt.register_post_import_hook(_register_again, "transformers.models.auto.configuration_auto")
for _name in _WHEELS:
    wrapt.register_post_import_hook(_lend, _name)
