"""The mamba patches whose result depends on the device, one file each, and what they share."""
