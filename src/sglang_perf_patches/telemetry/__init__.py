"""What an operator can see of running processes.

`recorder` keeps a process's record up to date, `records` writes and reads record files, `procfs`
queries the system about processes, `ready` logs which patches are live when a server is ready, and
`metrics` puts the states into the server's own ``/metrics``. They import only `model` of the other
packages.
"""
