#!/usr/bin/env bash
# The tests of the Python package, on the host backend. Without PyTorch the tests that need it are
# skipped, with the reason; the layer below it is tested all the same.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
python/scripts/library.sh
python/scripts/command.sh
cd python
SYMMEM_COMMAND=$PWD/.build/symmem exec "$python" -m pytest -q "$@"
