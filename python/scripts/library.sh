#!/usr/bin/env bash
# Builds libsymmem.so into the Python package, so that the package runs from its source tree.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec cmd/libsymmem/build.sh python/src/symmem/libsymmem.so
