#!/usr/bin/env bash
# Tests every Triton kernel and the engine with every method on a machine with a GPU: `make gpu`.
#
#   scripts/gpu.sh build/gpu
#
# Needs a python3 with torch's CUDA build, and parlay's other dependencies. Reports lie in the folder.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
reports=$1
mkdir -p "$reports"
export PYTHONPATH="src:${PYTHONPATH:-}"
failed=0

run() {
    local name=$1
    shift
    # Without the suite's own conftest.py, which needs servers and clients.
    timeout "${LIMIT:-900}" python3 -m pytest -q -p no:cacheprovider -o filterwarnings=default --tb short \
        --numprocesses "${WORKERS:-4}" --durations 8 "$@" >"$reports/$name.log" 2>&1 || failed=1
    grep -E '^E  ' "$reports/$name.log" | sort | uniq -c | sort -rn | head -20
    tail -25 "$reports/$name.log"
}

run kernels --confcutdir tests/kernels --ignore tests/kernels/triton/test_triton_engine.py tests/kernels/triton
run engine --confcutdir tests/gpu tests/gpu
exit $failed
