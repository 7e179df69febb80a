#!/bin/sh
# Speculative decoding on Hopper GPUs with FlashAttention 3. For DeepSeek-V3 on 0.5.23
# `sglang-perf-patches doctor -- COMMAND` reports one patch live, also with --dp 8 --enable-dp-attention:
# mla.page-table-bound, which prevents a crash near the context limit.
#
# STRICT: the server exits with 1 if a patch of the set is gated or refused. With --enable-mixed-chunk, for
# example, mla.page-table-bound is gated, so this script then fails while the server boots, with a line that
# names the flag. Pin sglang's version: a patch may not know a newer one, and then the server does not start either.
#
#   examples/eagle_mla.sh --model-path MODEL --speculative-draft-model-path DRAFT
set -eu

export SGLANG_PERF_PATCHES=mla SGLANG_PERF_PATCHES_STRICT=1
sglang-perf-patches list
exec python -m sglang.launch_server --attention-backend fa3 --speculative-algorithm EAGLE \
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "$@"
