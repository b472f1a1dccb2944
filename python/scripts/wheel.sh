#!/usr/bin/env bash
# Builds the wheel into dist. The backend is python/backend/wheelwright.py, which needs nothing but
# Python's standard library, so neither pip nor the network is needed.
set -euo pipefail
cd "$(dirname "$0")/../.."
python/scripts/library.sh
python/scripts/command.sh
mkdir -p dist
rm -f dist/symmem-*.whl
cd python
python3 -c 'import sys
sys.path.insert(0, "backend")
import wheelwright
print("dist/" + wheelwright.build_wheel("../dist"))'
