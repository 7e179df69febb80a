#!/bin/sh
# sglang's MLX backend on a Mac, with the mlx patches alone.
#
#   examples/mlx_on_a_mac.sh --model-path MODEL     serve, with any options of the server
#   examples/mlx_on_a_mac.sh                        prove and measure them on this Mac
#
# The second takes ten minutes at most, needs no model, and ends with one file,
# mlx-on-this-mac.txt (or $FILE): please attach it to an issue, whatever the result. We have had no
# Mac so far. It says which bits MLX's kernels give here, whether the patches' results are stock's,
# what servers reply in a second (stock, patched and mlx_lm.server, by turns), and what they hold in
# memory. Nothing is sent anywhere. VERIFY (mlx), KERNELS, SERVERS and MEMORY hold other options of
# the parts; MODEL is a model of yours for the servers, in place of random weights.
set -u

export SGLANG_USE_MLX=1 SGLANG_PERF_PATCHES=mlx
if [ "$#" -gt 0 ]; then
    sglang-perf-patches list
    exec python -m sglang.launch_server "$@"
fi

file=${FILE:-mlx-on-this-mac.txt}
parts=$(dirname "$0")/../tests/benchmarks/mlx
say() { echo; echo "== $*"; }
# part SECONDS COMMAND...: run it, and end it after so many seconds.
part() {
    seconds=$1
    shift
    say "$*"
    "$@" &
    running=$!
    (sleep "$seconds" && kill "$running") > /dev/null 2>&1 &
    limit=$!
    wait "$running"
    echo "it ended with $?"
    kill "$limit" 2> /dev/null
}
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
    part 30 sglang-perf-patches list
    part 60 python "$parts/kernels.py" ${KERNELS:---quick --seconds 50}
    part 150 sglang-perf-patches verify ${VERIFY:-mlx}
    part 270 python "$parts/beside.py" --here ${MODEL:+--model "$MODEL"} \
        ${SERVERS:---shape 0.6b-4bit --loads unique --each 2 --slots 8192 --seconds 240}
    part 45 python "$parts/footprint.py" ${MEMORY:-}
} 2>&1 | sed "s|$HOME|~|g" | tee "$file"
echo
echo "All of this is in $file: please attach it to an issue."
