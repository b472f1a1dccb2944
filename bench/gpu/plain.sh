#!/usr/bin/env bash
# The path that the table chooses against NCCL on ordinary addresses: no operation may take more than
# 2 percent longer than the plain path, on ordinary memory from 4 MiB and on symmetric memory from
# 1 KiB to 256 MiB. Replays of graphs; five worlds in turns on the same GPUs, medians over all of
# their batches. It prints the paths' times, and what is too slow by name.
#
#   MEMORY    which memory (any symmetric)
#   OPS       operations (all_reduce,all_gather,reduce_scatter,broadcast,reduce,alltoall)
#   SIZES     these sizes instead of a range, such as 1K,64K,4M
#   FACTOR    the ratio of consecutive sizes (4)
#   MAX       the largest size (256M)
#   BATCH     the duration of a batch (4ms)
#   LIMIT     the longest time for a memory, in seconds (560)
#   WORLDS    how many worlds (5)
#   DTYPE     the type of elements (bfloat16)
#   OUT       a folder for the JSON (none)
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
needs_gpus "times of paths"

ops=${OPS:-all_reduce,all_gather,reduce_scatter,broadcast,reduce,alltoall}
run=(symmem bench collective --backend "$BACKEND" --ranks "$RANKS" --ops "$ops" --compare --graph
	--worlds "${WORLDS:-5}" --batches 5 --batch "${BATCH:-4ms}" --dtype "${DTYPE:-bfloat16}" --enforce)
for memory in ${MEMORY:-any symmetric}; do
	case $memory in
	any) first=4M ;;
	symmetric) first=1K ;;
	*)
		fail "no memory is named $memory"
		continue
		;;
	esac
	sizes=(-b "$first" -f "${FACTOR:-4}" -e "${MAX:-256M}")
	[[ -z ${SIZES:-} ]] || sizes=(--sizes "$SIZES")
	if [[ -n ${OUT:-} ]]; then
		mkdir -p "$OUT"
		expect 0 "${LIMIT:-560}" "${run[@]}" "${sizes[@]}" --buffers "$memory" --json \
			>"$OUT/plain-$memory-$RANKS.txt"
		cat "$OUT/plain-$memory-$RANKS.txt"
	else
		expect 0 "${LIMIT:-560}" "${run[@]}" "${sizes[@]}" --buffers "$memory"
	fi
done
finish
