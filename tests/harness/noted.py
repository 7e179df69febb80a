"""Notes with which features of a server each patch was let through, as its process read them."""

from collections.abc import Callable, Iterable
from typing import Any


def tell(note: Callable[[str, Iterable[str]], object]) -> None:
    """Have `note` called with the patch and the features, whenever this process rules on one."""
    from sglang_perf_patches.live.memory import Member
    from sglang_perf_patches.live.registry import Registry
    from sglang_perf_patches.model.feature import Setup

    rule = Registry._ruling

    def ruled(self: Registry, member: Member, setup: Setup) -> Any:
        reason = rule(self, member, setup)
        if reason is None:
            note(member.patch.id, setup.on)
        return reason

    Registry._ruling = ruled  # type: ignore[method-assign]
