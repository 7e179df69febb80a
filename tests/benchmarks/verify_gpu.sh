#!/usr/bin/env bash
# verify_gpu.sh KIT [NAME ...]: `verify` next to stock 0.5.23 on one GPU, in the repository's root.
# KIT is the unpacked folder of such a release, after its setup.sh. Prints what verify prints and the
# seconds of each run: the second one has compiled kernels. $OUT gets the JSON.
set -uo pipefail
kit=$1; shift
# shellcheck disable=SC1091
. "$kit/env.sh"
export PYTHONPATH=$PWD/src:$PYTHONPATH
python3 -c 'import wrapt' || { echo "carry a wheel of wrapt, and put it on PYTHONPATH"; exit 1; }
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for run in first second; do
  began=$(date +%s.%N)
  python3 -m sglang_perf_patches verify "$@"
  code=$?
  echo "VERIFY $run exit $code seconds $(python3 -c "import time; print(round(time.time() - $began, 1))")"
done
python3 -m sglang_perf_patches verify --json "$@" >"${OUT:-/tmp}/verify.json"
