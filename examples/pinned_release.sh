#!/bin/sh
# A server pinned to a release that loads no plugins (before 0.5.11): `run` activates the patches
# in the command and in every Python that it starts.
#
#   examples/pinned_release.sh --model-path MODEL
set -eu

sglang-perf-patches list
exec sglang-perf-patches run python -m sglang.launch_server "$@"
