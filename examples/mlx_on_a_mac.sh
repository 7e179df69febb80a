#!/bin/sh
# sglang's MLX backend on a Mac, with the mlx patches alone.
#
#   examples/mlx_on_a_mac.sh --model-path MODEL
set -eu

export SGLANG_USE_MLX=1 SGLANG_PERF_PATCHES=mlx
sglang-perf-patches list
exec python -m sglang.launch_server "$@"
