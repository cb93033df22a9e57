#!/usr/bin/env bash
# Builds the native module with tile instructions (AMX) emulated in AVX512, so that tests run their kernels on
# processors that have AVX512 with bf16 alone.
#
#   scripts/amx.sh build/amx
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSKBUILD=ON -DPARLAY_EMULATED_TILES=ON \
    -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')"
cmake --build "$1" --parallel "${JOBS:-2}"
