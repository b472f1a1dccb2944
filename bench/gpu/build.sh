#!/usr/bin/env bash
# Builds into build/gpu what the other scripts of this folder run: the command, the tests of the GPU
# backend and of its parts, and a file that names their commit. Running them needs neither Go nor
# the CUDA toolkit nor a C compiler. Build on a machine with Go and copy build/gpu.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/gpu
mkdir -p "$out"
export CGO_ENABLED=0
go build -trimpath -ldflags="-s -w" -o "$out/symmem" ./cmd/symmem
go test -c -trimpath -ldflags="-s -w" -o "$out/nccl.test" ./driver/nccl
for part in direct gpu memory p2p stream; do
	go test -c -trimpath -ldflags="-s -w" -o "$out/$part.test" "./driver/nccl/internal/$part"
done
go test -c -trimpath -ldflags="-s -w" -o "$out/symmem.test" .
go test -c -trimpath -ldflags="-s -w" -o "$out/chaos.test" ./internal/chaos
changed=
[[ -z $(git status --porcelain) ]] || changed=', with changes'
echo "$(git rev-parse HEAD)$changed" >"$out/COMMIT"
cat "$out/COMMIT"
ls -l "$out"
