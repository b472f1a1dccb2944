#!/usr/bin/env bash
# Compares the path that the table chooses with both forced paths, replayed from graphs, from 1 KiB
# to 256 MiB. The table is measured first. The ratio to the better path must be at least 0.97
# everywhere. OUT is a folder for the table and the JSON (a temporary one).
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
needs_gpus "times of paths"

bar=${BAR:-0.97}
out=${OUT:-}
if [[ -z $out ]]; then
	out=$(mktemp -d)
	at_exit rm -rf "$out"
fi
ops=all_reduce,all_gather,reduce_scatter
expect 0 900 symmem tune --backend "$BACKEND" --ranks "$RANKS" --ops "$ops" \
	--min 1K --max "${MAX:-256M}" --output "$out/tuning.json"
cat "$out/tuning.json"
export SYMMEM_TUNING=$out/tuning.json

expect 0 900 symmem bench collective --backend "$BACKEND" --ranks "$RANKS" --ops "$ops" --compare \
	--graph -b 1K -e "${MAX:-256M}" --dtype bfloat16 --json >"$out/paths.txt"
grep -v '^{' "$out/paths.txt" || true
grep '^{' "$out/paths.txt" >"$out/paths.json" || fail "the bench has printed no JSON"
cat "$out/paths.json"

# The JSON has the worst ratio: "worst":{"ratio":0.98,"name":"..."}.
worst=$(sed -n 's/.*"worst":{"ratio":\([0-9.e-]*\),"name":"\([^"]*\)".*/\1 \2/p' "$out/paths.json")
echo "# worst ratio of auto to the better path: ${worst:-none}"
awk -v worst="${worst%% *}" -v bar="$bar" 'BEGIN { exit !(worst != "" && worst >= bar) }' ||
	fail "the bar is $bar"
finish
