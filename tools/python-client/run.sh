#!/usr/bin/env bash
# The published Python client against a fresh daemon: our own checks, in checks.py, in every wire
# form of the client. Prints "N passed, N failed".
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

with_python "queen-mq[zstd]==2.6.0"
with_daemon
"$python" "$here/checks.py" "$url"
