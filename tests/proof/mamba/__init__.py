"""The mamba patches on a CPU, one file each, and what their checks share."""
