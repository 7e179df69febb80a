#!/bin/sh
# The decode server of a disaggregated deployment of a sliding-window model (GPT-OSS, Llama 4 ...).
# What gains is swa.page-size-1, at the page size of 1 that is sglang's default. The set's policies are
# not on: with the pools that stock makes those of a decode server change nothing.
#
#   examples/pd_decode_swa.sh --model-path MODEL
set -eu

export SGLANG_PERF_PATCHES=swa
sglang-perf-patches list
exec python -m sglang.launch_server --disaggregation-mode decode "$@"
