"""What replaces a layer's attention module, its requests' caches and MLX in a decode step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class WrapperOf:
    """Stock's attention wrapper of a layer, around another attention module."""

    def __init__(self, wrapper: Any, module: Any) -> None:
        vars(self).update(vars(wrapper), _inner=module)


class LayerStep:
    """Replaces a layer's attention module, and each request's cache of that layer.

    What stock's method does in one layer of a step, and what happens here:

    | stock | here |
    | --- | --- |
    | computes and normalizes queries and keys | the module's own, through `__getattr__` |
    | computes the values | `v_proj` keeps them and returns this object |
    | reshapes and transposes the values | `reshape` and `transpose` return this object |
    | rotates the queries | the first `rope` call returns the module's result |
    | rotates the keys | the second writes K and V of the batch, and returns this object |
    | slices each request's K and V | `__getitem__` returns this object |
    | writes them into its cache | `write_token` does nothing, they are written |
    | reads its K and V, pads them | `get_kv` returns two `OfAll`; the padding is 0, see `Step` |
    | concatenates all K, then all V | `Core.concatenate` returns the array of the first `OfAll` |
    | attends, projects | stock's own code, on the arena's arrays |
    """

    def __init__(self, module: Any, step: Any, index: int) -> None:
        self._module, self._index = module, index
        self._step: Any = step
        self._rotated = False
        self._values: Any = None
        self._attended: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def v_proj(self, x: Any) -> Any:
        """Compute and keep the values."""
        self._values = self._module.v_proj(x)
        return self

    def rope(self, array: Any, offset: Any) -> Any:
        """Rotate the queries, then the keys, (batch, heads, 1, head_dim)."""
        rotated = self._module.rope(array, offset=offset)
        if not self._rotated:
            self._rotated = True
            return rotated
        values = self._values.reshape(*rotated.shape[:3], -1)
        keys, values = self._step.write(self._index, rotated, values)
        self._attended = OfAll(keys), OfAll(values)
        return self

    def forget(self) -> None:
        """Drop all references: see `Step.decode`."""
        self._step = self._values = self._attended = None

    def reshape(self, *_: Any) -> Any:
        """Return this object: it stands for the values, then for the keys."""
        return self

    transpose = __getitem__ = reshape

    def write_token(self, *_: Any) -> None:
        """Do nothing: the tokens of the whole batch are written already."""

    def get_kv(self, *_: Any) -> Any:
        """K and V of all requests, two `OfAll`, returned for each request."""
        return self._attended


@dataclass(slots=True)
class OfAll:
    """K or V of all requests; replaces one request's."""

    array: Any


@dataclass(slots=True)
class InGroups:
    """K or V of all requests: an array for each group, to which `GroupedStep.attend` attends."""

    arrays: Sequence[Any]
    step: Any


class _Forwarding:
    """A module of MLX's, except for the functions that a subclass defines."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        """Look a name up once, since a layer uses some names per request."""
        value = getattr(self._inner, name)
        setattr(self, name, value)
        return value


class _Fast(_Forwarding):
    """``mlx.core.fast``, which attends to each group of requests where there are several."""

    def scaled_dot_product_attention(
        self, queries: Any, keys: Any, values: Any, **kwargs: Any
    ) -> Any:
        """Attend; queries and the result are (batch, n_heads, 1, head_dim)."""
        attend = self._inner.scaled_dot_product_attention
        if type(keys) is InGroups:
            return keys.step.attend(attend, queries, keys.arrays, values.arrays, **kwargs)
        return attend(queries, keys, values, **kwargs)


class Core(_Forwarding):
    """``mlx.core``, which finds K and V of an arena's layer in one array already."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.fast = _Fast(inner.fast)

    def concatenate(self, arrays: Any, axis: int = 0) -> Any:
        """Concatenate K or V of the requests."""
        first = arrays[0]
        if type(first) is OfAll:
            return first.array
        # As MLX does it, without a call: a single request's step takes no longer to build.
        return first if len(arrays) == 1 else self._inner.concatenate(arrays, axis=axis)
