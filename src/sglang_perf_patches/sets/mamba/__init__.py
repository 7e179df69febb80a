"""Tracking of mamba states."""

from ...patch import Patch

SUMMARY = "device-to-host syncs when mamba states are tracked"
PATCHES: tuple[Patch, ...] = ()
