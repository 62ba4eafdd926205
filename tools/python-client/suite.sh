#!/usr/bin/env bash
# The Python client's own tests against a fresh daemon. Its source package is downloaded for the run and nothing of it
# is kept here; the package ships no "client" fixture, so conftest.py brings one. Prints passed and failed by file and
# ends with 0 whatever they are: this informs. Arguments: names of test files, without them those of the message plane.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

files=("$@")
if [ "${#files[@]}" -eq 0 ]; then
    files=(test_push test_pop test_consume test_ack_commit test_ack_window test_dlq test_queue test_subscription
        test_transaction test_transaction_lease_fencing test_complete)
fi

with_python "queen-mq==2.6.0" "pytest==8.4.2" "pytest-asyncio==1.2.0" "pytest-timeout==2.4.0"
"$scratch/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$scratch" \
    "queen-mq==2.6.0"
mkdir "$scratch/suite"
tar --extract --gzip --file "$scratch"/queen_mq-2.6.0.tar.gz --directory "$scratch/suite" --strip-components=1
# Only the tests: the package itself comes from the environment, as a user has it.
rm -rf "$scratch/suite/queen" "$scratch/suite/queen_mq.egg-info"
cp "$here/conftest.py" "$scratch/suite/tests/conftest.py"
with_daemon

export QUEEN_SERVER_URL="$url" QUEEN_URL="$url"
all_passed=0
all_failed=0
for file in "${files[@]}"; do
    log="$scratch/$file.log"
    (cd "$scratch/suite" && "$python" -m pytest -q --timeout=120 -o asyncio_mode=auto -p no:cacheprovider \
        "tests/$file.py" >"$log" 2>&1) || true
    passed="$(grep -Eo '[0-9]+ passed' "$log" | tail -n 1 | grep -Eo '[0-9]+' || echo 0)"
    failed="$(grep -Eo '[0-9]+ (failed|error)' "$log" | grep -Eo '[0-9]+' | awk '{ n += $1 } END { print n + 0 }' || true)"
    failed="${failed:-0}"
    echo "$file: $passed passed, $failed failed"
    grep -E '^(FAILED|ERROR)' "$log" | cut -c 1-200 || true
    all_passed=$((all_passed + passed))
    all_failed=$((all_failed + failed))
done
echo "$all_passed passed, $all_failed failed"
