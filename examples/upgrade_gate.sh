#!/bin/sh
# A gate for CI: it fails if an upgrade of sglang would lose a patch that SGLANG_PERF_PATCHES chooses.
# It fetches the release and reads its source; nothing is installed. Without an installed sglang it checks
# only whether every chosen patch knows that release's code. It exits with 1 if a patch would be lost, and
# with 2 if the release can't be fetched.
#
#   examples/upgrade_gate.sh 0.5.23
set -eu

if [ $# -ne 1 ]; then
    echo "usage: $0 VERSION" >&2
    exit 2
fi
exec sglang-perf-patches doctor --sglang-version "$1"
