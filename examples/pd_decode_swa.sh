#!/bin/sh
# The decode server of a disaggregated deployment of a sliding-window model (gpt-oss, Llama 4 ...).
# For gpt-oss-20b `sglang-perf-patches doctor -- COMMAND` reports swa.page-size-1 and swa.idle-admission live,
# and on releases before 0.5.18 also swa.tail-prealloc. First tokens come sooner at
# page size 1, sglang's default. The opt-in patches of the set are off: they don't change a decode server.
#
#   examples/pd_decode_swa.sh --model-path MODEL
set -eu

export SGLANG_PERF_PATCHES=swa
sglang-perf-patches list
exec python -m sglang.launch_server --disaggregation-mode decode "$@"
