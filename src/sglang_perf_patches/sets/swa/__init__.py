"""Sliding-window KV in disaggregated decode."""

from ...patch import Patch

SUMMARY = "full-length reservation of sliding-window KV in disaggregated decode"
PATCHES: tuple[Patch, ...] = ()
