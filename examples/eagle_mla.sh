#!/bin/sh
# Speculative decoding on a Hopper GPU with FlashAttention 3, where mla.page-table-bound keeps the
# server alive near its context limit. STRICT: rather no server than one without a
# patch that was named. So install sglang with its version pinned: a newer one may have code that a
# patch does not know, and then this does not start.
#
#   examples/eagle_mla.sh --model-path MODEL --speculative-draft-model-path DRAFT
set -eu

export SGLANG_PERF_PATCHES=mla SGLANG_PERF_PATCHES_STRICT=1
sglang-perf-patches list
exec python -m sglang.launch_server --attention-backend fa3 --speculative-algorithm EAGLE \
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "$@"
