#!/usr/bin/env bash
# Boot stock and patched Engines in turn: interleave.sh OUT.jsonl "none mla none …" [OPTION=VALUE …]
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$1 sides=$2
shift 2
number=0
for side in $sides; do
  number=$((number + 1))
  SGLANG_PERF_PATCHES=$side timeout "${LIMIT:-200}" python3 -m sglang_perf_patches run \
    python3 "$here/engine.py" "$side-$number" "$out" "$@" 2>&1 |
    grep -E "sglang-perf-patches|dropped|ENGINE|Error|error:" | cut -c1-600
done
python3 "$here/summary.py" "$out"
