"""The entry point that sglang calls in its processes (group ``sglang.srt.plugins``)."""

from __future__ import annotations

from .model import switch


def load() -> None:
    """Activate what the environment chooses; never raise, unless STRICT ends the process.

    sglang's loader swallows an Exception together with what it says: here the operator gets one
    line instead, and a server that runs as stock.
    """
    strict = False
    try:
        strict = switch.strict_from_environment()
        text = switch.from_environment()
        if switch.is_off(text):
            return
        from . import activate

        activate(text, strict=strict)
    except Exception as error:
        line = f"sglang-perf-patches: no patch is applied: {error or type(error).__name__}"
        if strict:
            from .live.ending import end_process

            end_process(line)
        import logging

        logging.getLogger("sglang_perf_patches").error(line)
