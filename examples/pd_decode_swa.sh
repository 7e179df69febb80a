#!/bin/sh
# The decode server of a disaggregated deployment of a sliding-window model (GPT-OSS, Gemma 3 ...).
# The two policies change whom the server admits and retracts, so they are named in full.
#
#   examples/pd_decode_swa.sh --model-path MODEL
set -eu

SGLANG_PERF_PATCHES=swa,swa.window-bounded-admission,swa.evict-before-retract
export SGLANG_PERF_PATCHES
sglang-perf-patches list
exec python -m sglang.launch_server --disaggregation-mode decode "$@"
