"""A real stock sglang server with its MLX backend, on a Linux machine without a GPU."""
