#!/usr/bin/env bash
# Kills one rank of a run on GPUs with SIGKILL and shows what the others say, and after how long.
# RANKS (default 4), from build/gpu; AFTER is when, in seconds from the start. Exit code 0 if every
# other rank ended by itself within 7 s. Those that have not are then asked for the stacks of
# their goroutines, which ends them: the log, of which the part is printed, then says where they hang.
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
grep -iE "lost|fault|divergence|ended" "$log" | cut -c1-300 | head -8
((status == 0)) || grep -E "goroutine .*(syscall|minutes|running)|symmem/(driver|internal/cuda|internal/nccl)" "$log" |
	cut -c1-160 | head -150
exit "$status"
