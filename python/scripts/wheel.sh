#!/usr/bin/env bash
# Builds the wheel into dist, by hatchling: that of $PYTHON, or else one that pip downloads.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
isolation=()
if "$python" -c 'import hatchling' 2>/dev/null; then isolation=(--no-build-isolation); fi
rm -f dist/symmem-*.whl
"$python" -m pip wheel -q --no-deps --disable-pip-version-check "${isolation[@]}" -w dist .
ls dist/symmem-*.whl
