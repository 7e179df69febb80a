#!/bin/sh
# Speculative decoding on Hopper GPUs with FlashAttention 3. For DeepSeek-V3 on 0.5.23 at TP 8
# `sglang-perf-patches doctor -- COMMAND` reports two patches live: mla.page-table-bound, which prevents a crash
# near the context limit, and mla.request-broadcast, which makes steps of few requests faster. With
# --enable-dp-attention the second one is gated.
#
# STRICT: the server exits with 1 if the patch that is named in full is gated or refused. With --enable-mixed-chunk,
# for example, mla.page-table-bound is gated, so this script then fails while the server boots, with a line that
# names the flag. Pin sglang's version: a patch may not know a newer one, and then the server does not start either.
#
#   examples/eagle_mla.sh --model-path MODEL --speculative-draft-model-path DRAFT
set -eu

export SGLANG_PERF_PATCHES=all,mla.page-table-bound SGLANG_PERF_PATCHES_STRICT=1
sglang-perf-patches list
exec python -m sglang.launch_server --attention-backend fa3 --speculative-algorithm EAGLE \
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "$@"
