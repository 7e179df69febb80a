"""What `status` reads: a small record of each process."""
