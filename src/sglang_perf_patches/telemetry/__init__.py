"""What can be seen of running processes.

`recorder` keeps a process's record up to date, `records` writes and reads record files, `procfs`
queries the system about processes, `ready` logs once that a server is ready, and `metrics` puts
the states into the server's own exporter. Of the other rooms they import only `model`.
"""
