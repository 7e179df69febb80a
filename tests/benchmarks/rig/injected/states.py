"""The states of a hybrid model's slots: whether two sides have left the same bits in them."""


class Helper:
    """The pool of states."""

    does = frozenset({"zero", "sums"})

    @classmethod
    def of(cls, scheduler, switch):
        """None where the model has no such states."""
        runner = getattr(getattr(scheduler, "tp_worker", None), "model_runner", None)
        pool = getattr(getattr(runner, "req_to_token_pool", None), "mamba_pool", None)
        return None if pool is None else cls(pool)

    def __init__(self, pool):
        self._pool = pool

    def show(self, off, side):
        """The states are of both sides."""

    def _states(self):
        cache = self._pool.mamba_cache
        return [held for held in (*cache.conv, cache.temporal) if held.numel()]

    def zero(self):
        """Set all bits to zero."""
        for held in self._states():
            held.zero_()

    def sums(self):
        """One number for each slot of each layer, of all the bits in it."""
        import torch

        checksums = []
        for held in self._states():
            for layer in held:
                bits = layer.reshape(layer.shape[0], -1)
                bits = bits.view({2: torch.int16, 4: torch.int32}[bits.element_size()])
                weight = torch.arange(bits.shape[1], device=bits.device) % 8191 + 1
                sums = [(part.long() * weight).sum(1) for part in bits.split(64)]
                checksums.append(
                    torch.cat(sums)[1:].tolist()
                )  # slot 0 is of rows without a request
        return checksums
