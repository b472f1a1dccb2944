#!/usr/bin/env bash
# Builds what the other scripts of this folder run, into build/gpu: the command, and the tests of the
# GPU backend. They need no Go, CUDA toolkit or C compiler where they run, so build where there is
# Go, carry build/gpu, and run there.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/gpu
mkdir -p "$out"
export CGO_ENABLED=0
go build -trimpath -o "$out/symmem" ./cmd/symmem
go test -c -trimpath -o "$out/nccl.test" ./driver/nccl
go test -c -trimpath -o "$out/symmem.test" .
ls -l "$out"
