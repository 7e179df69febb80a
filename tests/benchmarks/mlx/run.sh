#!/usr/bin/env bash
# Measure `bench mlx` on a GPU machine where the kit of pack.sh is unpacked.
# usage: [ONLY="N ..."] run.sh KIT OUT [SECONDS]     KIT has site/ and src/; writes OUT/bench.jsonl as it goes, and what went
# wrong to OUT/bench.err; the most important first; ONLY names the measurements to make, by number
set -uo pipefail
kit=$1 out=$2 limit=${3:-520} began=$SECONDS
root=$(cd "$(dirname "$0")/../../.." && pwd)
mkdir -p "$out"
# MLX looks for CUDA's libraries beside itself: those of the machine's PyTorch serve.
nvidia=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])')
[ -e "$kit/site/nvidia" ] || ln -s "$nvidia" "$kit/site/nvidia"
number=0
bench() { # VERSION CUDNN OPTION...
  local version=$1 cudnn=$2 left=$((limit - SECONDS + began)) name; shift 2
  number=$((number + 1)); case " ${ONLY:-$number} " in *" $number "*) ;; *) return ;; esac
  [ "$left" -lt 25 ] && { echo "no time for $version $*"; return; }
  name=$version-cudnn-$([ "$cudnn" = 1 ] && echo on || echo off)-$number
  echo "== $name $* ($left s left)" | tee -a "$out/bench.err"
  echo "{\"run\": \"$name\", \"options\": \"$*\"}" >> "$out/bench.jsonl"
  timeout "$left" env SGLANG_PERF_PATCHES=none MLX_CUDA_USE_CUDNN_SDPA="$cudnn" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 \
    PYTHONPATH="$kit/src/$version:$kit/site:$root/src" \
    python3 -W ignore -m sglang_perf_patches.bench mlx "$@" >> "$out/bench.jsonl" 2>> "$out/bench.err"
  echo "   ended with $? after $((SECONDS - began)) s: $(tail -1 "$out/bench.jsonl" | cut -c1-200)"
}
# Prompts of 254 tokens, for the compared steps to cross 256, where MLX's CUDA backend changes its kernel.
quick="--rounds 3 --steps 8"
bench 0.5.23 1 --batch 2,4,8,16 --context 1024 --taken changing --rounds 3 --steps 6
bench 0.5.23 1 --batch 16 --context 254,1024 --taken read,chained $quick
bench 0.5.10.post1 1 --batch 4,16 --context 254,1024 $quick
bench 0.5.23 0 --batch 16 --context 254,1024 --taken read,chained $quick
bench 0.5.10.post1 1 --batch 2,16 --context 1024 --taken changing --rounds 3 --steps 6
bench 0.5.11 0 --batch 16 --context 254,1024 --taken read,chained $quick
bench 0.5.17 0 --batch 16 --context 254,1024 --taken read,chained $quick
bench 0.5.23 1 --batch 2,8 --context 4000 --taken read,chained $quick
bench 0.5.23 1 --batch 2,4,8 --context 254 --taken read,chained $quick
bench 0.5.11 1 --batch 4 --context 254,1024 --taken read,chained $quick
bench 0.5.17 1 --batch 4 --context 254,1024 --taken read,chained $quick
bench 0.5.10.post1 1 --batch 2,8 --context 254,1024 $quick
bench 0.5.23 1 --batch 4,16 --context 4000 --taken read,chained $quick
bench 0.5.10.post1 1 --batch 4,16 --context 4000 $quick
bench 0.5.23 0 --batch 2,4,8 --context 254,4000 --taken chained $quick
bench 0.5.11 1 --batch 2,8 --context 254,4000 --taken chained $quick
bench 0.5.17 1 --batch 2,8 --context 254,4000 --taken chained $quick
bench 0.5.11 1 --batch 4 --context 1024 --taken changing --rounds 3 --steps 6
bench 0.5.17 1 --batch 4 --context 1024 --taken changing --rounds 3 --steps 6
echo "done in $((SECONDS - began)) s"
