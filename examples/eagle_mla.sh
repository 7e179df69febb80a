#!/bin/sh
# Speculative decoding of a model with multi-head latent attention (DeepSeek-V3, Kimi K2 ...).
# STRICT: rather no server than one without a patch that was named.
#
#   examples/eagle_mla.sh --model-path MODEL --speculative-draft-model-path DRAFT
set -eu

export SGLANG_PERF_PATCHES=mla SGLANG_PERF_PATCHES_STRICT=1
sglang-perf-patches list
exec python -m sglang.launch_server --speculative-algorithm EAGLE --speculative-num-steps 3 \
    --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "$@"
