#!/usr/bin/env bash
# Builds libsymmem.so into the Python package, so that the package runs from its source tree.
set -euo pipefail
cd "$(dirname "$0")/../.."
export CGO_ENABLED=1 GOTOOLCHAIN=local
go build -trimpath -buildmode=c-shared -ldflags='-s -w' \
	-o python/src/symmem/libsymmem.so ./cmd/libsymmem
rm -f python/src/symmem/libsymmem.h # cgo writes it; symmem.h is the contract
