#!/usr/bin/env bash
# Kills one rank of a run on GPUs with SIGKILL, and shows what the other ranks report and when.
# RANKS is the number of ranks (4), AFTER the time of the kill in seconds from the start. The
# binaries are in build/gpu. The exit code is 0 if every other rank ended by itself within 7 s.
# Otherwise the rest are made to print the stacks of their goroutines and exit, and the end of the
# log shows where they hang.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
ranks=${RANKS:-4}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
build/gpu/symmem verify --backend nccl --ranks "$ranks" --churn 200 --rounds 5000 >"$log" 2>&1 &
launcher=$!
sleep "${AFTER:-15}"
victim=$(pgrep -P "$launcher" | tail -1)
echo "killing process $victim, a child of $launcher"
kill -9 "$victim"
begin=$(date +%s%N)
took() { echo "$((($(date +%s%N) - begin) / 1000000)) ms"; }
status=0
if timeout 7 tail --pid="$launcher" -f /dev/null; then
	echo "the others ended after $(took)"
else
	status=1
	hanging=$(pgrep -P "$launcher" | tr '\n' ' ')
	echo "after $(took) these have not ended: $hanging"
	# shellcheck disable=SC2086
	kill -QUIT $hanging
	timeout 10 tail --pid="$launcher" -f /dev/null
fi
grep -iE "lost|fault|divergence|ended|killed" "$log" | cut -c1-300 | head -8
((status == 0)) || grep -E "goroutine .*(syscall|minutes|running)|symmem/(driver|internal/cuda|internal/nccl)" "$log" |
	cut -c1-160 | head -150
exit "$status"
