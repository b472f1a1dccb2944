#!/usr/bin/env bash
# Checks the types and the format of the sources, with npm. go test ./internal/page checks that the
# bundle is built from them.
set -euo pipefail
cd "$(dirname "$0")"
npx --yes --package typescript@5.9.3 tsc -p .
npx --yes prettier@3.6.2 --print-width 100 --check 'src/*.ts' 'src/*.css'
