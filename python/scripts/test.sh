#!/usr/bin/env bash
# Runs the tests of the Python package on the host backend. Tests that need PyTorch are skipped,
# with the reason, if it is not installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
unset PYTHONDONTWRITEBYTECODE # hundreds of processes import the same files
python/scripts/library.sh
python/scripts/command.sh
SYMMEM_COMMAND=$PWD/python/.build/symmem exec "$python" -m pytest -q "$@"
