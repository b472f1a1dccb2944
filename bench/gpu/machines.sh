#!/usr/bin/env bash
# Tests several machines that are simulated on one: NCCL_HOSTID divides the ranks among machines,
# and NCCL uses sockets between them. Results must be right, captured or not, and every rank must
# report each fault by name.
#
#   LAYOUTS     numbers of machines (2 4)
#   PARTS       parts to run (checks random captures faults kills uneven graphs recoveries windows)
#   SECONDS_EACH   duration of random programs in each layout (60)
#   SEED        seed of random programs (1)
#   INTERFACE   network interface (lo)
#   NCCL_LABEL  name of the version of NCCL in the report (none)
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
choose_parts checks random captures faults kills uneven graphs recoveries windows

export NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_SOCKET_IFNAME=${INTERFACE:-lo}
export SYMMEM_TEST_BACKEND=$BACKEND
chaos=("$BUILD/chaos.test" -test.v -test.timeout 100s -seed "${SEED:-1}" -at-once 1)

# on_machines MACHINES COMMAND... runs the ranks of a command on simulated machines.
# shellcheck disable=SC2016 # the ranks' shells expand it
machine='export NCCL_HOSTID=machine-$((RANK * $0 / WORLD_SIZE)); exec "$@"'
on_machines() { printf '%s\0' symmem launch -n "$RANKS" -- bash -c "$machine" "$@"; }

# run_on CODE SECONDS MACHINES COMMAND... requires an exit code of a command on simulated machines.
run_on() {
	local code=$1 seconds=$2 command
	shift 2
	mapfile -d '' -t command < <(on_machines "$@")
	expect "$code" "$seconds" "${command[@]}"
}

# run_part PART MACHINES runs a part on a number of machines.
run_part() {
	local verify=(symmem verify --backend "$BACKEND" --seed "${SEED:-1}")
	case $1 in
	checks)
		run_on 0 60 "$2" "${verify[@]}" --churn 100 --skew --check every --groups 3
		run_on 1 60 "$2" "${verify[@]}" --churn 400 --skew --check every --placement address
		;;
	random)
		run_on 0 $((${SECONDS_EACH:-60} + 60)) "$2" "${verify[@]}" --for "${SECONDS_EACH:-60}s" \
			--max-bytes 1M
		;;
	captures)
		MACHINES=$2 expect 0 60 "$BUILD/symmem.test" -test.v -test.timeout 60s \
			-test.run '^TestFirstCallsAreCapturedBetweenMachines$'
		;;
	faults)
		# The ranks of this table appear to run on two machines.
		[[ $2 != 2 ]] || expect 0 100 "$BUILD/chaos.test" -test.v -test.timeout 100s -test.parallel 1 \
			-test.run '^TestPageOnAGPU$/.*/.*/gpu_machines$'
		;;
	kills) expect 0 100 "${chaos[@]}" -machines "$2" -programs 8 -test.run 'TestKillsOnAGPU$' ;;
	uneven) expect 0 100 "${chaos[@]}" -machines "$2" -programs 20 -test.run 'TestUnevenOnAGPU$' ;;
	graphs) expect 0 100 "${chaos[@]}" -machines "$2" -programs 10 -test.run 'TestGraphsOnAGPU$' ;;
	recoveries)
		expect 0 100 "${chaos[@]}" -machines "$2" -programs 40 -test.run 'TestRecoveriesOnAGPU$'
		;;
	windows) probe_windows "$2" ;;
	esac
}

# probe_windows MACHINES requests windows between machines. For them NCCL needs GIN, which over
# sockets has type 2 and needs GDRCopy. NCCL's log shows whether there are windows, and symmem
# doctor why there are none.
probe_windows() {
	local log copy
	log=$(mktemp -d)
	at_exit rm -rf "$log"
	for copy in 0 1; do
		printf 'NCCL_GDRCOPY_ENABLE=%s\n' "$copy"
		export NCCL_GIN_TYPE=2 NCCL_GDRCOPY_ENABLE=$copy NCCL_GDRCOPY_USE_INTERNAL_DMABUF=$copy
		NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_DEBUG_FILE=$log/$copy.%p \
			run_on 0 60 "$1" symmem verify --backend "$BACKEND" --path window --groups 3
		grep -hE 'ymmetric|GIN|Gin|RMA/|GDRCOPY|DMA-BUF mmap' "$log/$copy".* |
			sed -E 's/^[^ ]* *//' | sort | uniq -c | sort -rn | head -20
		run_on 0 60 "$1" symmem doctor --backend "$BACKEND"
	done
	unset NCCL_GIN_TYPE NCCL_GDRCOPY_ENABLE NCCL_GDRCOPY_USE_INTERNAL_DMABUF
}

rows=()
for name in "${parts[@]}"; do
	for machines in ${LAYOUTS:-2 4}; do
		begin=$SECONDS before=$failed failed=0
		run_part "$name" "$machines"
		result=pass
		((failed == 0)) || result='**FAILED**'
		rows+=("| ${NCCL_LABEL:-} | $machines x $((RANKS / machines)) | $name | $result | $((SECONDS - begin)) |")
		failed=$((before | failed))
	done
done
printf '\n| NCCL | machines | part | result | s |\n|---|---|---|---|---|\n'
printf '%s\n' "${rows[@]}"
finish
