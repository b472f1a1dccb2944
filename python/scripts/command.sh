#!/usr/bin/env bash
# Builds the symmem command for the wheel, without cgo, so that it needs no newer glibc than Go.
set -euo pipefail
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0 GOTOOLCHAIN=local
exec go build -trimpath -ldflags="-s -w" -o python/.build/symmem ./cmd/symmem
