"""What running processes show of themselves.

`keeper` keeps a process's record up to date, `records` writes and reads record files, `procfs`
asks the system about processes, `ready` says once that a server is ready, and `metrics` puts the
states into the server's own exporter. Of the other rooms they know `model` alone.
"""
