#!/usr/bin/env bash
# Builds libsymmem.so: build.sh OUTPUT. It needs Go and gcc, and no header of CUDA or NCCL. The
# linker is given the list of exported symbols, which go build alone does not do. Go's build ID is
# left out: it depends on the path of that list, and everything else only on the sources.
set -euo pipefail
output=$(realpath -m "$1")
cd "$(dirname "$0")"
export CGO_ENABLED=1 GOTOOLCHAIN=local CGO_CFLAGS="-O2 -g -include $PWD/glibc.h"
link=-Wl,--version-script=$PWD/symbols.map
if [ "$(go env GOARCH)" = amd64 ]; then
	# Up to glibc 2.33 these have the functions of glibc.h; later libc.so.6 does.
	link+=" -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -l:libresolv.so.2 -Wl,--as-needed"
fi
go build -trimpath -buildmode=c-shared -ldflags="-s -w -buildid= '-extldflags=$link'" -o "$output" .
rm -f "${output%.so}.h" # cgo writes it; symmem.h is the contract
