#!/usr/bin/env bash
# Compares the path that the table chooses with NCCL on ordinary addresses. No operation may take
# more than 2 percent longer than the plain path, on ordinary memory from 4 MiB and on symmetric
# memory from 1 KiB to 256 MiB. It replays graphs in five worlds in turns on the same GPUs, and
# takes medians over all their batches. It prints the times of the paths and lists what is too slow.
#
#   MEMORY    memory (any symmetric)
#   OPS       operations (all_reduce,all_gather,reduce_scatter,broadcast,reduce,alltoall)
#   SIZES     sizes, such as 1K,64K,4M, instead of a range
#   FACTOR    ratio of consecutive sizes (4)
#   MAX       largest size (256M)
#   BATCH     duration of a batch (4ms)
#   LIMIT     time limit for each memory, in seconds (560)
#   WORLDS    number of worlds (5)
#   DTYPE     type of the elements (bfloat16)
#   OUT       folder for the JSON (none)
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
