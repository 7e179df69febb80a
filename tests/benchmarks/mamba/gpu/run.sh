#!/usr/bin/env bash
# run.sh KIT PART …: what mamba.md has of `mamba.gdn-prefill-graph` on one H200, next to stock 0.5.23.
# KIT is the unpacked folder of such a release, after its setup.sh; run it in the repository's root.
# Results and logs go to $OUT. A part that fails leaves the others alone; each ends in time by itself.
#   turns   (7 min)  24 layers and Qwen3.5-35B-A3B's dimensions, stock and patched by turns, defaults
#   boots   (5 min)  boots and memory, two a side at once; the second of each says what its captures take
#   verify  (4 min)  every CUDA patch, twice: the second time kernels are compiled
set -uo pipefail
kit=$1; shift
out=${OUT:-/tmp/gdn-out}; mkdir -p "$out"
# shellcheck disable=SC1091
. "$kit/env.sh"
export PYTHONPATH=$PWD/src:$PWD:$PYTHONPATH PYTHONUNBUFFERED=1
rig=tests/benchmarks/rig
side_by_side=(mem_fraction_static=0.97 max_total_tokens=120000)

say() { echo "$(date +%T) $*"; }

engine() { # NAME SECONDS SHAPE WORD …: one Engine by turns, in a session of its own
  local name=$1 limit=$2; shift 2
  SGLANG_PERF_PATCHES=mamba setsid timeout -k 5 "$limit" python3 -m sglang_perf_patches run \
    python3 $rig/turns.py "$out/$name.json" "$@" >"$out/$name.log" 2>&1 &
  pids[$name]=$!
}

ready() { grep -q '^READY' "$out/$1.log" 2>/dev/null || ! kill -0 "${pids[$1]}" 2>/dev/null; }

turns() {
  declare -A pids
  export ROUNDS=13 SAID=60 MIXED=1000
  CELLS="1x90 1x130 1x519 1x1500 3x300 8x512" engine gdn-24 520 gdn-24 all ttft tokens mixed \
    "${side_by_side[@]}" max_mamba_cache_size=200
  CELLS="1x130 1x519 1x1500" engine qwen 540 qwen-35b-a3b all ttft prefills tokens \
    "${side_by_side[@]}" max_mamba_cache_size=60 max_running_requests=16 \
    mamba_scheduler_strategy=extra_buffer
  # Each waits, stopped, until both have booted; then one measures after the other.
  local first=""
  for _ in $(seq 1800); do
    for name in gdn-24 qwen; do
      if [[ $first != *$name* ]] && ready $name; then
        kill -STOP -- "-${pids[$name]}" 2>/dev/null
        say "$name has booted"; first+=" $name"
      fi
    done
    [[ $first == *gdn-24* && $first == *qwen* ]] && break
    sleep 0.2
  done
  for name in gdn-24 qwen; do
    kill -CONT -- "-${pids[$name]}" 2>/dev/null
    wait "${pids[$name]}"; say "$name exit $?"
    kill -KILL -- "-${pids[$name]}" 2>/dev/null
    tail -c 1500 "$out/$name.log"
  done
}

boots() {
  python3 - "$out/plan.json" "${side_by_side[@]}" max_mamba_cache_size=200 <<'EOF'
import json, sys
out, *options = sys.argv[1:]
plan = []
for number in (1, 2):
    for name, patches in (("stock", ""), ("patched", "mamba")):
        env = {"CAPTURES": "1"} if number == 2 else {}
        plan.append({"name": f"{name}-{number}", "group": "24 layers", "shape": "gdn-24",
                     "options": options, "patches": patches, "env": env, "profiles": []})
json.dump(plan, open(out, "w"))
EOF
  ROUNDS=7 STATES=24 CELLS="1x130 1x519 3x300" BOOT_S=260 LIMIT_S=330 \
    timeout -k 5 360 python3 $rig/fleet.py "$out/boots.json" "$out/plan.json" >"$out/boots.log" 2>&1
  say "boots exit $?"
  for name in stock-2 patched-2; do
    grep -h '^CAPTURED' "$out/boots-logs/$name.log" | sed 's/^CAPTURED //' >"$out/captures-$name.jsonl"
  done
  for log in "$out"/boots-logs/*.log; do say "$log"; tail -c 400 "$log"; done
  rm -r "$out/boots-logs"; tail -c 3000 "$out/boots.log"
}

verify() {
  timeout -k 5 240 tests/benchmarks/verify_gpu.sh "$kit" >"$out/verify.log" 2>&1
  say "verify exit $?"; grep VERIFY "$out/verify.log"; tail -c 2500 "$out/verify.log"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
for part; do
  case $part in
    turns | boots | verify) say "$part"; $part ;;
    *) echo "no part $part"; exit 2 ;;
  esac
done
say done
