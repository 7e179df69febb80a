"""The entry point that sglang calls in its processes (group ``sglang.srt.plugins``)."""

from __future__ import annotations

from .model import switch


def load() -> None:
    """Activate the selection of the environment. It never raises; STRICT may end the process."""
    # sglang's plugin loader swallows exceptions with their messages. So the operator gets one line
    # from here, and the server runs as stock.
    strict = False
    try:
        strict = switch.is_strict()
        text = switch.from_environment()
        if switch.is_off(text):
            return
        from . import activate

        activate(text, strict=strict)
    except Exception as error:
        line = f"sglang-perf-patches: no patch is applied: {error or type(error).__name__}"
        if strict:
            from .live.executor import end_process

            end_process(line)
        import logging

        logging.getLogger("sglang_perf_patches").error(line)
