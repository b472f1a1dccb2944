#!/usr/bin/env bash
# One decode layer, batch 1 to 256, the path that is chosen against plain, and batch 1 to 8 once more
# with a product of our own, which overlaps. It needs cuBLAS, which PyTorch brings along, or which
# SYMMEM_CUBLAS names. The table is measured first, unless SYMMEM_TUNING names one.
# DECODE has more flags, but no batch sizes.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
needs_gpus "times of layers"

if [[ -z ${SYMMEM_TUNING:-} ]]; then
	out=$(mktemp -d)
	at_exit rm -rf "$out"
	expect 0 600 symmem tune --backend "$BACKEND" --ranks "$RANKS" --ops all_reduce \
		--min 1K --max 16M --output "$out/tuning.json"
	export SYMMEM_TUNING=$out/tuning.json
fi
read -ra more <<<"${DECODE:-}"
expect 0 600 symmem bench decode --backend "$BACKEND" --ranks "$RANKS" --enforce "${more[@]}"
expect 0 600 symmem bench decode --backend "$BACKEND" --ranks "$RANKS" --enforce "${more[@]}" \
	--product plain --batch-sizes 1,2,4,8
finish
