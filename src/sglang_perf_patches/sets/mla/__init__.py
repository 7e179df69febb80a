"""Speculative decoding with MLA."""

from ...patch import Patch

SUMMARY = "the device-to-host sync of seq_lens and dead metadata work in speculative decoding"
PATCHES: tuple[Patch, ...] = ()
