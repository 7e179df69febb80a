#!/bin/sh
# A gate for CI: fails where an upgrade of sglang would lose a patch that SGLANG_PERF_PATCHES
# chooses. It fetches the release and judges its source; nothing is installed.
#
#   examples/upgrade_gate.sh 0.5.23
set -eu

sglang-perf-patches doctor --sglang-version "$1"
