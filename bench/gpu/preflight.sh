#!/usr/bin/env bash
# Runs symmem preflight on GPUs that work, with a rank that never starts, and with a link of 2 ranks
# that counts as slow because --min-link is greater than its speed.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
needs_gpus "speeds of links"

preflight=(symmem preflight --backend "$BACKEND" --json)
expect 0 200 "${preflight[@]}" --ranks "$RANKS"
# shellcheck disable=SC2016 # the ranks' shells expand it
absent='if [ "$RANK" = 1 ]; then sleep 100; else exec "$@"; fi'
expect 4 200 symmem launch -n "$RANKS" --no-prefix -- bash -c "$absent" absent \
	"${preflight[@]}" --timeout 5s
expect 5 200 "${preflight[@]}" --ranks 2 --min-link 100000
finish
