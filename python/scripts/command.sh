#!/usr/bin/env bash
# Builds the symmem command for the wheel. Without cgo it links no newer glibc than Go itself needs.
set -euo pipefail
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0 GOTOOLCHAIN=local
exec go build -trimpath -ldflags="-s -w" -o python/.build/symmem ./cmd/symmem
