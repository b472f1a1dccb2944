#!/usr/bin/env bash
# Builds libsymmem.so: build.sh OUTPUT. It needs Go and gcc, and no header of CUDA or NCCL. The
# linker is given the list of exported symbols, which go build alone does not do. Go's build ID is
# left out: it depends on the path of that list, and everything else only on the sources.
set -euo pipefail
output=$(realpath -m "$1")
cd "$(dirname "$0")"
export CGO_ENABLED=1 GOTOOLCHAIN=local
go build -trimpath -buildmode=c-shared \
	-ldflags="-s -w -buildid= -extldflags=-Wl,--version-script=$PWD/symbols.map" -o "$output" .
rm -f "${output%.so}.h" # cgo writes it; symmem.h is the contract
