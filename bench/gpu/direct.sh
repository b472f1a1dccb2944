#!/usr/bin/env bash
# Tests the direct path. right compares every operation, type, reduction and count with results
# computed on the host, bit by bit; makes 100,000 calls in a row; and tests 400 norms of each group.
# streams covers links, streams, captures and ranks that never come. killed kills ranks before,
# inside and after kernels. bench replays all paths from graphs in turns. With more than two GPUs,
# some parts are repeated with three. Each part has a time limit; without the norms, all took less
# than ten minutes with 4 GPUs. PARTS lists the parts to run (right streams killed bench). OUT is a
# folder for the JSON of the bench (by default a temporary one). SIZES is the bench's largest
# message.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
choose_parts right streams killed bench

out=${OUT:-}
if [[ -z $out ]]; then
	out=$(mktemp -d)
	at_exit rm -rf "$out"
fi
mkdir -p "$out"

right() {
	SYMMEM_TEST_FULL=1 expect 0 "${SECONDS_MAX:-450}" "$BUILD/nccl.test" -test.v \
		-test.timeout "${SECONDS_MAX:-450}s" -test.run '^TestDirect|^TestNorms'
}

streams() {
	expect 0 200 "$BUILD/nccl.test" -test.v -test.timeout 200s -test.run \
		'Turns$|^TestPathsMix|^TestEager|^TestLargeCalls|^TestGroups|^TestTimeoutNamesAMissingRank$|^TestAbort'
}

killed() {
	SYMMEM_TEST_BACKEND=$BACKEND SYMMEM_PATH=direct expect 0 300 "$BUILD/symmem.test" -test.v \
		-test.timeout 300s -test.run '^TestErrorNamesKilledRank$|^TestIsolatedGPUs'
}

# bench measures 2 ranks and, if there are more, all ranks.
bench() {
	local ranks
	if [[ -n $SHARED ]]; then
		skip_part "times need a GPU for each rank, and $SHARED"
		return
	fi
	for ranks in 2 "$RANKS"; do
		expect 0 400 symmem bench collective --backend "$BACKEND" --ranks "$ranks" \
			--ops all_reduce,all_gather,reduce_scatter --compare --graph -b 1K -e "${SIZES:-64M}" \
			--dtype bfloat16 --json >"$out/direct-$ranks.txt"
		cat "$out/direct-$ranks.txt"
		((RANKS > 2)) || break
	done
}

for part in "${parts[@]}"; do
	begin=$SECONDS
	"$part"
	echo "# part $part took $((SECONDS - begin)) s"
done
finish
