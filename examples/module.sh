#!/bin/sh
# module.sh builds and runs allreduce/main.go in a module of its own, which takes symmem from this
# checkout: once by a replace directive, once by a workspace. It leaves nothing behind.
#
#   ./module.sh            # prints the sum of 2 ranks, twice
set -eu
cd "$(dirname "$0")/.."
checkout=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
go build -o "$folder/symmem" ./cmd/symmem
mkdir "$folder/mine"
cp examples/allreduce/main.go "$folder/mine"
cd "$folder/mine"
go mod init -C "$folder/mine" example.com/mine 2>/dev/null

go work init . "$checkout"
go build -o mine .
"$folder/symmem" launch -n 2 -- ./mine
rm go.work

go mod edit -require symmem@v0.0.0 -replace "symmem=$checkout"
go mod tidy 2>"$folder/log" || { cat "$folder/log" >&2; exit 1; }
go build -o mine .
"$folder/symmem" launch -n 2 -- ./mine
