"""The states of this process in the server's own ``/metrics``, with ``--enable-metrics``.

sglang uses the multiprocess mode of prometheus_client: every process of the server writes its
metrics to one folder, and whichever process answers reads them all. So each process sets its own.
The library is used only if sglang has loaded it; this project does not require it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from .. import __version__

logger = logging.getLogger("sglang_perf_patches")

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_LIVE, _RAN = "sglang_perf_patches_live", "sglang_perf_patches_ran"
_INFO = "sglang_perf_patches_info"
_WHAT = {
    _LIVE: "Whether a chosen patch is live in a process (1) or not (0).",
    _RAN: "Whether code of a chosen patch has run in a process.",
    _INFO: "The versions and the selection of the patches; always 1.",
}
_gauges: dict[str, Any] = {}
"""Name → gauge. They are kept, because prometheus_client lets a process register a name once."""


class Exporter:
    """Puts the states of one process into its metrics."""

    def __init__(self) -> None:
        self._is_off = False
        self._exported: list[tuple[str, bool, bool]] = []

    def export(self, data: Mapping[str, Any]) -> None:
        """Update the metrics from this process's record, if the server has metrics."""
        # While the module is being imported it has no Gauge yet.
        gauge = getattr(sys.modules.get("prometheus_client"), "Gauge", None)
        if self._is_off or gauge is None or not os.environ.get(_FOLDER):
            return
        now = [
            (patch["id"], patch["state"] == "live", patch["ran"])
            for patch in data["patches"]
            if patch["state"] != "off"
        ]
        if now == self._exported:
            return
        try:
            self._set(gauge, data, now)
        except Exception as error:  # such as a full disk; the server must continue
            self._is_off = True
            logger.debug("no metrics of sglang-perf-patches: %s", error, exc_info=True)
        else:
            self._exported = now

    def _set(self, gauge: Any, data: Mapping[str, Any], now: list[tuple[str, bool, bool]]) -> None:
        if not _gauges:
            for name in (_LIVE, _RAN):  # "liveall": a series for each process, with its pid
                _gauges[name] = gauge(name, _WHAT[name], ["patch"], multiprocess_mode="liveall")
            labels = ["version", "sglang", "selection"]
            _gauges[_INFO] = gauge(_INFO, _WHAT[_INFO], labels, multiprocess_mode="max")
        for patch_id, is_live, has_run in now:
            _gauges[_LIVE].labels(patch_id).set(int(is_live))
            _gauges[_RAN].labels(patch_id).set(int(has_run))
        _gauges[_INFO].labels(__version__, data["sglang"], data["selection"]).set(1)
