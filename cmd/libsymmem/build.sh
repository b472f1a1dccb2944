#!/usr/bin/env bash
# Builds libsymmem.so: build.sh OUTPUT. It needs Go and gcc, and no header of CUDA or NCCL. The
# linker is given a list of symbols, which go build alone does not do: everything else is hidden.
set -euo pipefail
output=$(realpath -m "$1")
cd "$(dirname "$0")"
export CGO_ENABLED=1 GOTOOLCHAIN=local
go build -trimpath -buildmode=c-shared \
	-ldflags="-s -w -extldflags=-Wl,--version-script=$PWD/symbols.map" -o "$output" .
rm -f "${output%.so}.h" # cgo writes it; symmem.h is the contract
