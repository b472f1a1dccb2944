#!/usr/bin/env bash
# Kills one rank of a run on GPUs with SIGKILL and shows what the others say, and after how long.
# RANKS (default 4), from build/gpu. Exit code 0 if every other rank ended by itself within 10 s.
set -uo pipefail
cd "$(dirname "$0")/../.."
ranks=${RANKS:-4}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
build/gpu/symmem verify --backend nccl --ranks "$ranks" --churn 200 --rounds 1000 >"$log" 2>&1 &
launcher=$!
sleep "${AFTER:-6}"
victim=$(pgrep -P "$launcher" | tail -1)
echo "killing process $victim, a child of $launcher"
kill -9 "$victim"
begin=$(date +%s%N)
timeout 10 tail --pid="$launcher" -f /dev/null
status=$?
echo "the others ended after $((($(date +%s%N) - begin) / 1000000)) ms"
grep -iE "lost|fault|divergence|ended" "$log" | cut -c1-300 | head -8
exit "$status"
