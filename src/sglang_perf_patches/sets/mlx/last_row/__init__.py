"""Prefill computes the model's head for the last position only.

Stock's own function runs and calls the model as usual. The trunk is the part of the model before
its head. The patch makes it return only its last position, so the head computes no other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from ....model.declaration import Declaration, gains
from ....model.patch import of
from ....model.patching import Patching
from ..device import equal_bits, on_cpu
from ..proven import PREFILL_AND_DECODE
from ..references import RUNNER
from ..trunk import cutting, logits_of, owner_of_trunk

PATCH = Declaration(
    *(__name__, "0.5.11 … 0.5.23"),
    only_with=("mlx",),
    gain_with="-states -windows",
    proven_with=PREFILL_AND_DECODE,
    worth=gains(
        "on one H200, with only this patch, a prompt of 2,048 tokens takes 0.96 of stock's time",
        "mlx.md#prompt-2048-last-row",
    ),
    absent_because="before 0.5.11 a prefill on MLX is computed at once, not as a graph",
    depends=(
        *of(RUNNER, "_extract_logits", "_forward_lazy_token", "_select_tokens_with_logprobs"),
        f"{RUNNER}._trunk_forward",
    ),
    anytime="a prefill's graph is built within one call, which gives the model back",
)
PATCH.on("… 0.5.17", note="acts on every chunk of a prompt")
PATCH.on(
    "0.5.18 …",
    note="acts on a prompt's last chunk: stock itself skips the head for the others, if "
    "it can call the model's trunk separately",
)

logger = logging.getLogger(__name__)

COUNTS: Counter[str] = Counter()
"""Counts for this process: ``cut`` prefills, whose head computed fewer positions than stock's;
``whole`` ones, which stock handled; and ``checks`` of one against the other."""

_ROWS = (1, 32, 256)
"""Candidate numbers of positions for the head; the first one that gives stock's bits is used. A GPU
uses different matrix kernels for one row, for some rows and for thousands of rows."""

_EXACT = 32
"""Up to this number, each number of positions has its own verdict; above, each power of two.
Metal's kernels for quantized matrices change at 6, 10 or 12 rows, by the device."""

# Matrix products that show the difference, as rows, inner size and columns.
_PROBES = (33, 128, 512), (65, 256, 512)


@PATCH.setup()
def setup(patch):
    patch.state.core = patch.module("mlx.core")
    patch.state.rows = {}  # by model and size, how many positions its head computes
    patch.state.is_off, patch.state.is_proven = False, None  # not known yet


@PATCH.replaces(*of(RUNNER, "prefill_start", "extend_start"))
def start(self, *args, patch, stock, **kwargs):
    """Build a prefill's graph with a model whose head computes only the last position."""
    model = self.model
    self.model = _Prefilled(model, patch)
    try:
        return stock(self, *args, **kwargs)
    finally:
        self.model = model


def gives_rows_alone(core: Any) -> bool:
    """Whether a single row times a matrix gives the same bits as among other rows, in float32.

    On a CPU the BLAS in MLX's Linux wheels sums each row independently; OpenBLAS, of another build,
    uses another kernel for few rows. For other dtypes MLX uses its own kernels.
    """
    for rows, inner, columns in _PROBES:
        left = core.random.normal((rows, inner), key=core.random.key(rows))
        right = core.random.normal((columns, inner), key=core.random.key(columns)).T
        alone = core.matmul(left[-1:], right)
        if not equal_bits(core, core.matmul(left, right)[-1:], alone).item():
            return False
    return True


class _Prefilled:
    """Replaces the model during a prefill; chooses how many positions its head computes."""

    def __init__(self, model: Any, patch: Patching) -> None:
        self._model, self._patch, self._core = model, patch, patch.state.core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output for one request's prompt, (1, number of last positions, vocabulary)."""
        model, state = self._model, self._patch.state
        owner, tokens = owner_of_trunk(model), args[0].shape[1]
        if owner is None:
            self._leave("its trunk has another name")
        if state.is_off or tokens == 1:
            COUNTS["whole"] += 1
            return model(*args, **kwargs)
        if state.is_proven is None:
            # On CPUs: proven in float32, bfloat16 and 4 bits. Elsewhere each size is checked once.
            state.is_proven = on_cpu(self._core) and gives_rows_alone(self._core)
        # The size of a matrix product selects its kernel.
        size = id(model), _size(tokens)
        rows = _ROWS[0] if state.is_proven else state.rows.get(size)
        with cutting(owner, _last(rows)) as trunk:
            output = model(*args, **kwargs)
        hidden = trunk.hidden
        was_cut = rows is not None and hidden is not None and hidden.shape[1] > rows
        if not trunk.can_cut:
            self._leave("its trunk returns something other than hidden states")
        elif rows is None and hidden is not None:
            if hidden.dtype == self._core.float32:
                self._leave("its head is in float32, for which the kernel changes with the size")
            else:
                state.rows[size] = self._checked(owner, hidden, args, kwargs, output)
        COUNTS["cut" if was_cut else "whole"] += 1
        self._patch.ran.seen |= was_cut
        return output

    def _checked(self, owner: Any, hidden: Any, args: Any, kwargs: Any, whole: Any) -> int:
        """The fewest positions for which the last one's logits equal stock's bit by bit."""
        COUNTS["checks"] += 1
        tokens: int = hidden.shape[1]
        for rows in _ROWS:
            if rows < tokens:
                with cutting(owner, _last(rows), hidden):
                    few = self._model(*args, **kwargs)
                if equal_bits(self._core, logits_of(whole)[:, -1], logits_of(few)[:, -1]).item():
                    return rows
        if tokens > _ROWS[-1]:
            device = self._core.default_device()
            self._leave(f"its head gives other bits for a few positions on {device}")
        return _size(tokens)

    def _leave(self, why: str) -> None:
        if not self._patch.state.is_off:
            self._patch.state.is_off = True
            reason = f"{type(self._model).__module__} runs stock's code: {why}"
            logger.warning("mlx.last-row: %s", reason)
            self._patch.gate(reason)


def _last(rows: int | None) -> Callable[[Any], Any]:
    """Cuts out the last positions, as many as `rows`; None for all of them."""
    return lambda hidden: hidden if rows is None else hidden[:, -rows:]


def _size(tokens: int) -> int:
    """The largest number of positions that shares the verdict of this number."""
    return tokens if tokens <= _EXACT else 1 << (tokens - 1).bit_length()
