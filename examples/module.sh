#!/bin/sh
# module.sh builds and runs allreduce/main.go in a separate module that uses symmem from this
# checkout, first through a workspace and then through a replace directive. It removes all files
# that it creates.
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
