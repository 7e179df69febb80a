"""A prompt as it was computed in a group: it replaces what stock would compute, or is compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..trunk import logits_of


@dataclass(frozen=True)
class Part:
    """A part of a prompt, computed but not evaluated. Called as a model, it fills the caches."""

    start: int  # tokens before it
    tokens: int  # its own
    # What each layer holds after it: keys and values, (1, n_kv_heads, tokens, head_dim), or a
    # recurrent layer's arrays, (1, …).
    layers: Sequence[Sequence[Any]]
    logits: Any = None  # of its last token, (1, 1, vocabulary); None where nothing reads them
    first: Part | None = None  # what stock computes of the prompt before it

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
            new = [each[:, :, self.start :] for each in arrays]
            if hasattr(of, "_full_keys"):
                # What its own `update_and_fetch` leaves; prefix and prompt are joined already.
                of.offset = arrays[0].shape[2]
                of._full_keys, of._full_values = arrays
                of._new_keys, of._new_values = new
            else:
                of.update_and_fetch(*new)
        return self.logits


@dataclass(eq=False)
class Trial:
    """Compares the rows of a group with what stock computes of its prompts, one by one."""

    kind: str  # what is tried
    what: str  # the group, in words
    wanted: int  # how many parts of prompts are to be compared
    parts: int = 0  # how many of them were
    pairs: list[tuple[Any, Any]] = field(default_factory=list)  # their arrays and stock's

    def model(self, model: Any, row: Part) -> Any:
        """Stock's model for the last part of a prompt; it is compared with its row once called."""

        def compute(input_ids: Any, *, cache: Sequence[Any]) -> Any:
            output = model(input_ids, cache=cache)
            self.pairs.append((row.logits, logits_of(output)[:, -1:]))
            self.note(row, cache)
            return output

        return compute

    def note(self, part: Part, cache: Sequence[Any]) -> None:
        """Keep what stock's caches hold behind a part."""
        self.parts += 1
        for arrays, of in zip(part.layers, cache, strict=True):
            if is_recurrent(of):
                self.pairs += zip(arrays, of.cache, strict=True)
                continue
            held = of.get_kv() if hasattr(of, "get_kv") else (of.keys, of.values)
            # Of a window, stock keeps the last tokens.
            self.pairs += [
                (mine[:, :, -its.shape[2] :], its) for mine, its in zip(arrays, held, strict=True)
            ]

    def are_near(self, core: Any, roundings: int) -> bool:
        """Whether all arrays differ by so many roundings of stock's largest value at most."""
        # What is computed with much rounding may be kept in a finer dtype.
        bound = roundings * max(_rounding(core, its.dtype) for _, its in self.pairs)
        near = []
        for mine, its in self.pairs:
            if mine.shape != its.shape:
                return False
            mine, its = mine.astype(core.float32), its.astype(core.float32)
            near.append(core.max(core.abs(mine - its)) <= bound * core.max(core.abs(its)))
        return bool(core.all(core.stack(near)).item())


def _rounding(core: Any, dtype: Any) -> float:
    """By which part rounding changes a value at most; GPUs may multiply float32 as TF32."""
    is_fine = dtype == core.float32 and core.default_device() == core.Device(core.cpu)
    return 2**-24 if is_fine else 2**-8 if dtype == core.bfloat16 else 2**-11


def is_recurrent(cache: Any) -> bool:
    """Whether a layer's cache is mlx-lm's for recurrent states, which can be told lengths."""
    return hasattr(cache, "lengths") and isinstance(getattr(cache, "cache", None), list)
