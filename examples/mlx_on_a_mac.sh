#!/bin/sh
# sglang's MLX backend on a Mac, with the mlx patches alone.
#
#   examples/mlx_on_a_mac.sh --model-path MODEL     serve, with any options of the server
#   examples/mlx_on_a_mac.sh                        prove and measure them on this Mac
#
# The second takes some minutes, needs no model, and ends with one file, mlx-on-this-mac.txt (or
# $FILE): please send it to us in an issue, whatever the result. We have had no Mac so far.
# VERIFY (mlx) is what it proves; BENCH holds options of `sglang-perf-patches bench mlx`.
set -u

export SGLANG_USE_MLX=1 SGLANG_PERF_PATCHES=mlx
if [ "$#" -gt 0 ]; then
    sglang-perf-patches list
    exec python -m sglang.launch_server "$@"
fi

file=${FILE:-mlx-on-this-mac.txt}
say() { echo; echo "== $*"; }
machine() {
    say the machine
    uname -mrs
    if command -v sw_vers > /dev/null; then
        sw_vers
        sysctl -n machdep.cpu.brand_string hw.memsize
    fi
    python -c "
from importlib import metadata
for name in ('sglang', 'mlx', 'mlx-metal', 'mlx-lm', 'transformers', 'sglang-perf-patches'):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
import mlx.core
print(mlx.core.default_device(), mlx.core.device_info())"
}
{
    machine
    say sglang-perf-patches list
    sglang-perf-patches list
    say "sglang-perf-patches verify ${VERIFY:-mlx}"
    sglang-perf-patches verify ${VERIFY:-mlx}
    echo "it ended with $?"
    say "sglang-perf-patches bench mlx ${BENCH:-}"
    sglang-perf-patches bench mlx ${BENCH:-}
    echo "it ended with $?"
} 2>&1 | tee "$file"
echo
echo "All of this is in $file: please send it to us."
