"""The states of a hybrid model's slots, else all KV: whether two sides left the same bits."""


class Helper:
    """The pool of states; of a model without states, its pools of KV."""

    does = frozenset({"zero", "sums"})

    @classmethod
    def of(cls, scheduler, switch):
        runner = getattr(getattr(scheduler, "tp_worker", None), "model_runner", None)
        pool = getattr(getattr(runner, "req_to_token_pool", None), "mamba_pool", None)
        if pool is not None:
            cache = pool.mamba_cache
            return cls([held for held in (*cache.conv, cache.temporal) if held.numel()])
        kv = getattr(runner, "token_to_kv_pool", None)
        pools = [getattr(kv, name, None) for name in ("full_kv_pool", "swa_kv_pool")]
        held = [
            getattr(each, name)
            for each in (pools if any(pools) else [kv])
            for name in ("k_buffer", "v_buffer")
            if getattr(each, name, None)
        ]
        return cls(held) if held else None

    def __init__(self, held):
        self._held = held

    def show(self, off, side):
        """The states are of both sides."""

    def zero(self):
        for held in self._held:
            for layer in held:
                layer.zero_()

    def sums(self):
        """For each layer numbers of all the bits in a slot, or in a hundredth of many slots."""
        import torch

        checksums = []
        for held in self._held:
            for layer in held:
                bits = layer.reshape(layer.shape[0], -1)
                bits = bits.view({2: torch.int16, 4: torch.int32}[bits.element_size()])
                weight = torch.arange(bits.shape[1], device=bits.device) % 8191 + 1
                # Few operations: the scheduler's thread spins, and each waits for the interpreter.
                rows = max(1, 2**27 // bits.shape[1])
                sums = [(part.long() * weight).sum(1) for part in bits.split(rows)]
                slots = torch.cat(sums)[1:]  # slot 0 is of rows without a request
                if len(slots) > 2000:
                    places = torch.arange(len(slots), device=slots.device) % 8191 + 1
                    slots = torch.stack([part.sum() for part in (slots * places).chunk(100)])
                checksums.append(slots.tolist())
        return checksums
