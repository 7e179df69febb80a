"""Notes with which features of a server each patch was let through, as its process read them."""

from collections.abc import Callable, Iterable
from typing import Any


def tell(note: Callable[[str, Iterable[str]], object]) -> None:
    """Have `note` called with the patch and the features, whenever this process rules on one."""
    from sglang_perf_patches.live.member import Member
    from sglang_perf_patches.live.published import Gatekeeper
    from sglang_perf_patches.model.feature import Setup

    rule = Gatekeeper._rule

    def ruled(self: Gatekeeper, member: Member, setup: Setup) -> Any:
        reason = rule(self, member, setup)
        if reason is None:
            note(member.patch.id, setup.on)
        return reason

    Gatekeeper._rule = ruled  # type: ignore[method-assign]
