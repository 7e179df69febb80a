"""What `sglang-perf-patches bench` runs: one module for each set."""
