"""What an operator can see of running processes.

`recorder` keeps a process's record up to date, `records` writes and reads record files, `procfs`
queries the system about processes, `summary` sums the records of a server up, `ready` logs which
patches are live when a server is ready, and `metrics` puts the states into the server's own
``/metrics``. Of the rest of the package they import `model` and the version.
"""
