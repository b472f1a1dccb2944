#!/usr/bin/env bash
# Runs the tests of the Python package on the host backend. Tests that need PyTorch are skipped,
# with the reason, if it is not installed. Files are tested side by side if pytest-xdist is.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
unset PYTHONDONTWRITEBYTECODE # hundreds of processes import the same files
workers=$(($(nproc) < 4 ? $(nproc) : 4)) # each starts up to four processes that import PyTorch
parallel=()
if "$python" -c 'import xdist' 2>/dev/null; then parallel=(-n "$workers" --dist loadfile); fi
python/scripts/library.sh
python/scripts/command.sh
SYMMEM_COMMAND=$PWD/python/.build/symmem exec "$python" -m pytest -q "${parallel[@]}" "$@"
