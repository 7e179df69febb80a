"""Commands that end as a whole, even when the process that started them is killed.

`command` starts a `supervisor` in a process of its own, which starts the command and ends it, with
all that came of it, when a pipe from the first process ends. The supervisor imports the standard
library and `telemetry.procfs` alone.
"""
