"""What a host without a Mac can tell of the mlx patches."""
