"""Commands that end with everything they started, even if the process that started them is killed.

`command` starts a `supervisor` in a process of its own. That starts the command, and ends it with
all of its descendants when a pipe from the first process closes. The supervisor imports only the
standard library and `procfs`, which reads the table of processes.
"""
