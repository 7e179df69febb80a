#!/bin/sh
# A server pinned to a release that loads no plugins (before 0.5.11): `run` activates the patches
# in the command and in every Python that it starts. On 0.5.10.post1 `sglang-perf-patches doctor
# -- sglang-perf-patches run COMMAND` reports these patches live: mamba.slot-exhaustion for Qwen3-Next at TP 4;
# swa.page-size-1, swa.tail-prealloc and swa.idle-admission for a gpt-oss-20b decode server.
#
#   examples/pinned_release.sh --model-path MODEL
set -eu

sglang-perf-patches list
exec sglang-perf-patches run python -m sglang.launch_server "$@"
