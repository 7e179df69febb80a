"""A prompt as it was computed in a group, for the place where stock would compute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Part:
    """A part of a prompt, computed but not evaluated. Called as a model, it fills the caches.

    Attributes:
        start: tokens before it.
        tokens: its own.
        layers: what each layer holds after it: keys and values, (1, n_kv_heads, tokens, head_dim),
            or a recurrent layer's arrays, (1, …).
        logits: of its last token, (1, 1, vocabulary); None where nothing reads them.
    """

    start: int
    tokens: int
    layers: Sequence[Sequence[Any]]
    logits: Any = None

    def fits(self, input_ids: Any, cache: Sequence[Any]) -> bool:
        """Whether a call of the model, for this request, asks for what was computed."""
        offset = next(each.offset for each in cache if not is_recurrent(each))
        return bool(input_ids.shape == (1, self.tokens) and offset == self.start)

    def __call__(self, _: Any, *, cache: Sequence[Any]) -> Any:
        """Fill a request's caches, and return the logits."""
        for arrays, of in zip(self.layers, cache, strict=True):
            if is_recurrent(of):
                of.cache = list(arrays)
                continue
            keys, values = arrays
            new = [each[:, :, self.start :] for each in arrays]
            if hasattr(of, "_full_keys"):
                # What its own `update_and_fetch` leaves; prefix and prompt are joined already.
                of.offset = keys.shape[2]
                of._full_keys, of._full_values = keys, values
                of._new_keys, of._new_values = new
            else:
                of.update_and_fetch(*new)
        return self.logits


@dataclass(frozen=True)
class Row(Part):
    """One prompt of a group: its last part, and `first`, what stock computes before that."""

    first: Part | None = None

    def is_near(self, single: Row, core: Any, part: float) -> bool:
        """Whether logits, KV and states differ by a part of the other row's largest at most."""
        pairs = [(self.logits, single.logits)]
        for mine, its in ((self.first, single.first), (self, single)):
            if mine is not None and its is not None:
                for one, other in zip(mine.layers, its.layers, strict=True):
                    pairs += zip(one, other, strict=True)
        near = []
        for one, other in pairs:
            one, other = one.astype(core.float32), other.astype(core.float32)
            near.append(core.max(core.abs(one - other)) <= part * core.max(core.abs(other)))
        return bool(core.all(core.stack(near)).item())


def is_recurrent(cache: Any) -> bool:
    """Whether a layer's cache is mlx-lm's for recurrent states, which can be told lengths."""
    return hasattr(cache, "lengths") and isinstance(getattr(cache, "cache", None), list)
