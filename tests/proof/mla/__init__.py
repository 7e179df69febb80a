"""The mla patches on a CPU, one file each, and what their checks share."""
