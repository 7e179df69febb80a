"""What an operator can see of running processes.

`recorder` keeps a process's record up to date, `records` writes and reads record files and sums up
those of a server, `procfs` queries the system about processes, `ready` logs which patches are live
when a server is ready, and `metrics` puts the states into the server's own ``/metrics``. Of the
rest of the package they import `model` and the version.
"""
