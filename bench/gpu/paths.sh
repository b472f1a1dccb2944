#!/usr/bin/env bash
# The path that is chosen against both forced, replayed from graphs, 1 KiB to 256 MiB. The table is
# measured first. The bar is a ratio of 0.97 to the better path everywhere. OUT is where the table
# and the JSON go (a folder that goes away).
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

# The worst ratio is in the JSON: "worst":{"ratio":0.98,"name":"..."}.
worst=$(sed -n 's/.*"worst":{"ratio":\([0-9.e-]*\),"name":"\([^"]*\)".*/\1 \2/p' "$out/paths.json")
echo "# worst ratio of auto to the better path: ${worst:-none}"
awk -v worst="${worst%% *}" -v bar="$bar" 'BEGIN { exit !(worst != "" && worst >= bar) }' ||
	fail "the bar is $bar"
finish
