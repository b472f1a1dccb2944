#!/usr/bin/env bash
# One decode layer, batch 1 to 256, the path that is chosen against plain. It needs cuBLAS, which
# PyTorch brings along, or which SYMMEM_CUBLAS names. The table is measured first, unless
# SYMMEM_TUNING names one.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

if [[ -z ${SYMMEM_TUNING:-} ]]; then
	out=$(mktemp -d)
	trap 'rm -rf "$out"' EXIT
	expect 0 600 symmem tune --backend "$BACKEND" --ranks "$RANKS" --ops all_reduce \
		--min 1K --max 16M --output "$out/tuning.json"
	export SYMMEM_TUNING=$out/tuning.json
fi
read -ra more <<<"${DECODE:-}"
expect 0 600 symmem bench decode --backend "$BACKEND" --ranks "$RANKS" --enforce "${more[@]}"
finish
