#!/usr/bin/env bash
# Tests several ranks on one GPU for correctness, not speed. machine.sh lists the requirements.
#
#   RANKS   number of ranks that share the GPU (4)
#   SEED    seed of random programs (1)
#   PARTS   parts to run (churn messages uneven recoveries gpu gpu_window verify)
# shellcheck source-path=SCRIPTDIR source=machine.sh
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0}
. "$(dirname "$0")/machine.sh"
choose_parts churn messages uneven recoveries gpu gpu_window verify

verify=(symmem verify --backend nccl --ranks "$RANKS" --seed "${SEED:-1}")
churn=("${verify[@]}" --churn 200 --skew)
random=("$BUILD/chaos.test" -test.v -test.timeout 270s -seed "${SEED:-1}" -programs 40 -at-once 1)
cells=("$BUILD/chaos.test" -test.v -test.timeout 590s -test.parallel 1 -all-cells -test.run)
export SYMMEM_TEST_BACKEND=nccl

run_part() {
	local path
	case $1 in
	churn)
		for path in plain window direct; do
			expect 0 120 "${churn[@]}" --path "$path" --groups 3
		done
		expect_text 1 Divergence 120 "${churn[@]}" --placement address --check every
		;;
	messages) expect 0 280 "${random[@]}" -test.run MessagesOn ;;
	# These tests have up to 8 ranks, which must share the queues.
	uneven) expect 0 280 env CUDA_DEVICE_MAX_CONNECTIONS=8 "${random[@]}" -test.run UnevenOn ;;
	recoveries) expect 0 280 "${random[@]}" -programs 200 -test.run 'TestRecoveriesOnAGPU$' ;;
	gpu) expect 0 600 "${cells[@]}" 'TestPageOnAGPU/.*/.*/gpu$' ;;
	# These run without the service. They leave NCCL's window kernels waiting, and if a process ends
	# with one, all clients of the service get a fault.
	gpu_window)
		expect 0 600 env -u CUDA_MPS_PIPE_DIRECTORY "${cells[@]}" 'TestPageOnAGPU/.*/.*/gpu_window$'
		;;
	verify) expect 0 150 "${verify[@]}" --for 60s ;;
	esac
}

for name in "${parts[@]}"; do
	begin=$SECONDS
	run_part "$name"
	echo "# part $name took $((SECONDS - begin)) s"
done
finish
