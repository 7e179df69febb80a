"""What an operator can see of running processes.

`recorder` keeps a process's record up to date, also in the server's own ``/metrics``; `records`
writes and reads record files and sums up those of a server; `procfs` queries the system about
processes; `ready` logs which patches are live when a server is ready, and its known faults.
"""
