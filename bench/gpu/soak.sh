#!/usr/bin/env bash
# Random programs for DURATION (20m), drawn from SEED (the date's second). No wrong element, no
# round without an end, and everything comes back.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

duration=${DURATION:-20m}
# The limit is twice the time and ten minutes, in seconds.
case $duration in
*h) limit=$((7200 * ${duration%h} + 600)) ;;
*m) limit=$((120 * ${duration%m} + 600)) ;;
*) limit=$((2 * ${duration%s} + 600)) ;;
esac
expect 0 "$limit" symmem verify --backend "$BACKEND" --ranks "$RANKS" --for "$duration" \
	--seed "${SEED:-$(date +%s)}"
finish
