# Shared by the scripts here; to be sourced. Needs: bash, cargo, curl, python3 with venv.
#
# with_python makes a virtual environment with the given packages; with_daemon starts combd on an empty directory and
# a free port. Both clean up when the script ends.

set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
scratch="$(mktemp -d)"
daemon=""
url=""

finish() {
    local status=$?
    if [ -n "$daemon" ]; then
        kill -TERM "$daemon" 2>/dev/null || true
        wait "$daemon" 2>/dev/null || true
    fi
    if [ "$status" -ne 0 ] && [ -f "$scratch/combd.log" ]; then
        echo "--- the end of combd's log:" >&2
        tail -n 40 "$scratch/combd.log" >&2
    fi
    rm -rf "$scratch"
}
trap finish EXIT

with_python() {
    python3 -m venv "$scratch/venv"
    "$scratch/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
    python="$scratch/venv/bin/python"
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

with_daemon() {
    (cd "$root" && cargo build --quiet --bin combd)
    local port binary
    port="$(free_port)"
    binary="${CARGO_TARGET_DIR:-$root/target}/debug/combd"
    "$binary" --data "$scratch/data" --port "$port" "$@" >"$scratch/combd.log" 2>&1 &
    daemon=$!
    url="http://127.0.0.1:$port"
    local tries=0
    until curl --silent --fail --output /dev/null "$url/health"; do
        tries=$((tries + 1))
        if [ "$tries" -gt 300 ] || ! kill -0 "$daemon" 2>/dev/null; then
            echo "combd does not become ready" >&2
            exit 1
        fi
        sleep 0.1
    done
}
