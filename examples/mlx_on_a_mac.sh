#!/bin/sh
# sglang's MLX backend on a Mac, with only the mlx patches. No Mac was ever measured.
#
#   examples/mlx_on_a_mac.sh --model-path MODEL     serve, with any options of the server
#   examples/mlx_on_a_mac.sh                        check and measure the patches on this Mac
#
# The second form takes ten minutes at most, needs no model, and writes one file, mlx-on-this-mac.txt
# (or $FILE): please attach it to an issue, whatever the result. Nothing is sent anywhere. The file says
#   - whether the results of the patches equal stock's (`verify`)
#   - whether servers with and without patches give the same replies, how fast they are, and how much memory
#     they take (`bench server`)
#   - whether a small hybrid model starts, with and without patches.
#
# You can set these variables: VERIFY, what is verified (default: mlx); LOAD, the options of the benchmark;
# SERVER, the options of the servers; MODEL, your own model instead of random weights; SHAPE, the size of the
# random weights (default: 0.6b-4bit); PORT, the port of the hybrid model's server; HYBRID_S, the seconds after
# which that server is ended.
#
# For a dense model `sglang-perf-patches doctor -- COMMAND` reports these patches live: mlx.pool-write,
# mlx.first-buffer, mlx.last-row, mlx.kv-arena and mlx.relay-device.
set -u

export SGLANG_USE_MLX=1 SGLANG_PERF_PATCHES=mlx
if [ "$#" -gt 0 ]; then
    sglang-perf-patches list
    exec python -m sglang.launch_server "$@"
fi

file=${FILE:-mlx-on-this-mac.txt}
tests=$(cd "$(dirname "$0")/../tests" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
say() { echo; echo "== $*"; }
# part SECONDS COMMAND...: run it, and end it after SECONDS.
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
ask() {
    curl -s -m 100 "127.0.0.1:$port/generate" -H "Content-Type: application/json" -d "{
        \"input_ids\": $(python -c "print(list(range(3, 3 + $1)))"),
        \"sampling_params\": {\"temperature\": 0, \"max_new_tokens\": 8, \"ignore_eos\": true}}"
    echo
}
# hybrid SELECTION: serve a small hybrid model with default arguments, and send it four prompts.
hybrid() {
    say "a hybrid with SGLANG_PERF_PATCHES=$1"
    port=${PORT:-31357}
    SGLANG_PERF_PATCHES=$1 python -m sglang.launch_server --model-path "$scratch/hybrid" \
        --host 127.0.0.1 --port "$port" ${SERVER:---max-total-tokens 16384} > "$scratch/log" 2>&1 &
    server=$!
    (sleep "${HYBRID_S:-150}" && kill "$server") > /dev/null 2>&1 &
    limit=$!
    while kill -0 "$server" 2> /dev/null; do
        if curl -sf -m 20 "127.0.0.1:$port/health" > /dev/null; then
            ask 300
            ask 300
            ask 260 & asking=$!
            ask 200
            wait "$asking"
            break
        fi
        sleep 1
    done
    kill "$limit" "$server" 2> /dev/null
    wait "$server"
    grep -E "^[A-Za-z]*Error: |sglang-perf-patches: " "$scratch/log" | tail -n 4
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
    part 150 sglang-perf-patches verify ${VERIFY:-mlx}
    if [ -z "${MODEL:-}" ]; then
        MODEL=$scratch/random
        PYTHONPATH=$tests/benchmarks/mlx:$tests/harness${PYTHONPATH:+:$PYTHONPATH} \
            python -c "import served, sys; served.write(*sys.argv[1:])" "$MODEL" "${SHAPE:-0.6b-4bit}"
    fi
    part 400 sglang-perf-patches bench server \
        ${LOAD:---num-prompts 32 --max-concurrency 8 --random-input-len 256 --random-output-len 64} -- \
        python -m sglang.launch_server --model-path "$MODEL" --host 127.0.0.1 \
        ${SERVER:---max-total-tokens 16384}
    python "$tests/harness/linux_mlx/tiny_model.py" "$scratch/hybrid" hybrid
    hybrid none
    hybrid mlx
} 2>&1 | sed "s|$HOME|~|g" | tee "$file"
echo
echo "All of this is in $file: please attach it to an issue."
