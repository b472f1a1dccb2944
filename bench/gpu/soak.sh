#!/usr/bin/env bash
# Runs random programs for DURATION (20m) from SEED (the current second). No element may be wrong,
# every round must end, and all memory must be freed.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

duration=${DURATION:-20m}
# The time limit in seconds is twice the duration and ten minutes.
case $duration in
*h) limit=$((7200 * ${duration%h} + 600)) ;;
*m) limit=$((120 * ${duration%m} + 600)) ;;
*) limit=$((2 * ${duration%s} + 600)) ;;
esac
expect 0 "$limit" symmem verify --backend "$BACKEND" --ranks "$RANKS" --for "$duration" \
	--seed "${SEED:-$(date +%s)}"
finish
