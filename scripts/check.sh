#!/usr/bin/env bash
# Checks a change in about a minute on two processors, once the caches are filled: gofmt, go build,
# go vet, the rules for code and documents, and the short tests of most packages. .ci/run also tests
# the commands, NCCL on the software GPU and Python, all with the race detector.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { echo "== $* (${SECONDS}s)"; }

# Left out: what takes minutes, because it compiles the software GPU or starts many processes.
slow='/driver/nccl|/internal/(chaos|cuda|nccl|softgpu|house)|/cmd/(lib)?symmem$|/bench/|/examples/'

step "gofmt"
unformatted=$(git ls-files '*.go' | xargs gofmt -l)
[ -z "$unformatted" ] || { echo "run gofmt -w on $unformatted" && exit 1; }
step "go build"
go build ./...
step "go vet"
go vet ./...
step "go test -short"
rules=$(mktemp)
trap 'rm -f "$rules"' EXIT
# The rules read files that Go does not know of, so an earlier result does not count.
go test -short -count=1 ./internal/house >"$rules" 2>&1 &
failed=0
# shellcheck disable=SC2046 # a word for each package
go test -short $(go list ./... | grep -vE "$slow") | grep -v 'no test files' || failed=1
wait $! || failed=1
cat "$rules"
step "done"
exit "$failed"
