#!/usr/bin/env bash
# gpu.sh KIT PART …: what needs one H200 next to stock 0.5.23. KIT is the unpacked folder of such a
# release, after its setup.sh; run it in the repository's root. Results and logs go to $OUT. A part
# that fails leaves the others alone; each ends in time by itself.
#   gdn      (7 min)  mamba.gdn-prefill-graph: 24 layers and Qwen3.5-35B-A3B's dimensions, by turns
#   windows  (5 min)  swa.prefill-graph: gpt-oss-20b's and Gemma-3-12B's dimensions, by turns
#   boots SHAPE PATCHES     (5 min)  boots and memory, two a side at once
#   lone SHAPE PATCHES      (5 min)  the same, one boot after the other
#   verify   (4 min)  every CUDA patch, twice: the second time kernels are compiled; the record
set -uo pipefail
kit=$1; shift
out=${OUT:-/tmp/gpu-out}; mkdir -p "$out"
# shellcheck disable=SC1091
. "$kit/env.sh"
export PYTHONPATH=$PWD/src:$PWD:$PYTHONPATH PYTHONUNBUFFERED=1
rig=tests/benchmarks/rig
side_by_side=(mem_fraction_static=0.97 max_total_tokens=120000)
declare -A pids

say() { echo "$(date +%T) $*"; }

engine() { # NAME SECONDS PATCHES SHAPE WORD …: one Engine by turns, in a session of its own
  local name=$1 limit=$2 patches=$3; shift 3
  SGLANG_PERF_PATCHES=$patches setsid timeout -k 5 "$limit" python3 -m sglang_perf_patches run \
    python3 $rig/turns.py "$out/$name.json" "$@" >"$out/$name.log" 2>&1 &
  pids[$name]=$!
}

ready() { grep -q '^READY' "$out/$1.log" 2>/dev/null || ! kill -0 "${pids[$1]}" 2>/dev/null; }

one_by_one() { # NAME …: each waits, stopped, until all have booted; then one measures after the other
  local booted="" name
  for _ in $(seq 1800); do
    for name; do
      if [[ $booted != *" $name "* ]] && ready "$name"; then
        kill -STOP -- "-${pids[$name]}" 2>/dev/null
        say "$name has booted"; booted+=" $name "
      fi
    done
    [[ $(wc -w <<<"$booted") == "$#" ]] && break
    sleep 0.2
  done
  for name; do
    kill -CONT -- "-${pids[$name]}" 2>/dev/null
    wait "${pids[$name]}"; say "$name exit $?"
    kill -KILL -- "-${pids[$name]}" 2>/dev/null
    tail -c 2500 "$out/$name.log"
  done
}

gdn() {
  export ROUNDS=13 SAID=60 MIXED=1000
  CELLS="1x90 1x130 1x519 1x1500 3x300 8x512" engine gdn-24 520 mamba gdn-24 all ttft tokens mixed \
    "${side_by_side[@]}" max_mamba_cache_size=200
  CELLS="1x130 1x519 1x1500" engine qwen 540 mamba qwen-35b-a3b all ttft prefills tokens \
    "${side_by_side[@]}" max_mamba_cache_size=60 max_running_requests=16 \
    mamba_scheduler_strategy=extra_buffer
  one_by_one gdn-24 qwen
}

windows() {
  export ROUNDS=${ROUNDS:-13} SAID=${SAID:-300} CELLS="1x130 1x519 1x1500 1x4000 8x512"
  local name
  for name in ${SHAPES:-gpt-oss-20b gemma-3-12b llama-8b-plain}; do
    engine "$name" 500 swa.prefill-graph "$name" all tokens ttft "${side_by_side[@]}"
  done
  # shellcheck disable=SC2086
  one_by_one ${SHAPES:-gpt-oss-20b gemma-3-12b llama-8b-plain}
}

fleet() { # NAME PLAN: what fleet.py measures of a plan
  ROUNDS=7 CELLS="1x130 1x519 3x300" BOOT_S=260 LIMIT_S=330 \
    timeout -k 5 360 python3 $rig/fleet.py "$out/$1.json" "$2" >"$out/$1.log" 2>&1
  say "$1 exit $?"; tail -c 2000 "$out/$1.log"
}

plan() { # FILE SHAPE PATCHES NUMBER …: a plan of boots; a name of - is stock's
  python3 - "$@" "${side_by_side[@]}" <<'EOF'
import json, sys
out, shape, patches, names, *options = sys.argv[1:]
if shape.startswith("gdn"):
    options.append("max_mamba_cache_size=200")
boots = [
    {"name": name, "group": shape, "shape": shape, "options": options, "profiles": [],
     "patches": "" if name.startswith("stock") else patches}
    for name in names.split(",")
]
json.dump(boots, open(out, "w"))
EOF
}

boots() {
  plan "$out/plan.json" "$1" "$2" stock-1,patched-1,stock-2,patched-2
  STATES=24 fleet "boots-$1" "$out/plan.json"
}

lone() {
  local name
  for name in stock-1 patched-1 stock-2 patched-2; do
    plan "$out/plan.json" "$1" "$2" $name
    TRITON_CACHE_DIR=$(mktemp -d) ROUNDS=0 fleet "lone-$1-$name" "$out/plan.json"
  done
}

verify() {
  timeout -k 5 240 tests/benchmarks/verify_gpu.sh "$kit" >"$out/verify.log" 2>&1
  say "verify exit $?"; grep VERIFY "$out/verify.log"; tail -c 2500 "$out/verify.log"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
while (($#)); do
  part=$1; shift
  case $part in
    gdn | windows | verify) say "$part"; $part ;;
    boots | lone) say "$part $1"; $part "$1" "$2"; shift 2 ;;
    *) echo "no part $part"; exit 2 ;;
  esac
done
say done
