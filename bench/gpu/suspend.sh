#!/usr/bin/env bash
# Suspends pools and groups on GPUs: graphs replayed after 100 cycles, memory freed as cuMemGetInfo
# counts it, time of a cycle, ncclCommSuspend alone with NCCL 2.29.7 or newer, and checkpoints of a
# process with suspended memory by the driver. Settings as in machine.sh, and:
#
#   PARTS      contract graphs cycles nccl checkpoint processes (all). processes needs PyTorch
#              (torch-build.sh): each rank is a process of its own
#   CYCLES     how many cycles are timed (20)
#   NCCL_NEWER the file of a newer NCCL, which is measured too (none). 100 cycles of a group then
#              take 100 s or more: ncclCommSuspend and ncclCommResume together take about 1 s
#
#   PARTS="graphs cycles" ./suspend.sh
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
choose_parts contract graphs cycles nccl checkpoint processes
export SYMMEM_TEST_BACKEND=nccl
here=$(dirname "$0") failed=0
# step PART SECONDS COMMAND... runs a command with a deadline and ends all its processes.
step() {
	local part=$1 limit=$2 child
	shift 2
	[[ " ${parts[*]} " == *" $part "* ]] || return 0
	echo "== $part: $*"
	setsid timeout -k 2 "$limit" "$@" &
	child=$!
	wait $child || { echo "FAILED: $part"; failed=1; }
	kill -KILL -- -$child 2>/dev/null || true
}
step graphs 60 "$BUILD/symmem.test" -test.timeout 58s -test.v \
	-test.run 'TestSuspend|TestUnreceived|TestResumeAfter|TestPoolWithoutDomain'
for kind in '(group|discard)' keep; do
	step cycles 20 "$BUILD/symmem.test" -test.run '^$' -test.bench "Suspend/$kind" \
		-test.timeout 18s -test.benchtime "${CYCLES:-20}x"
done
for library in ${NCCL:-} ${NCCL_NEWER:-}; do
	step nccl 40 python3 "$here/suspend.py" nccl "$library"
done
if [[ -n ${NCCL_NEWER:-} ]]; then
	SYMMEM_NCCL=$NCCL_NEWER step cycles 240 "$BUILD/symmem.test" -test.timeout 238s -test.v \
		-test.run 'TestSuspendedGroupReplays|TestSuspendFrees' -test.bench 'Suspend/group' \
		-test.benchtime "${CYCLES:-20}x"
fi
# The driver does not checkpoint clients of the Multi-Process Service.
step checkpoint 40 env CUDA_MPS_PIPE_DIRECTORY=/nonexistent \
	python3 "$here/suspend.py" checkpoint "$BUILD/symmem.test"
if [[ -d $BUILD/python ]]; then
	limit=75
	for library in "${NCCL:-}" ${NCCL_NEWER:-}; do
		PYTHONPATH="$BUILD/python:$here/torch" step processes $((limit + 5)) \
			env ${library:+"LD_PRELOAD=$library"} "${PYTHON:-python3}" \
			"$here/torch/launch.py" 2 $limit "$here/torch/suspended.py"
		limit=235
	done
fi
step contract 30 "$BUILD/nccl.test" -test.run TestContract/suspension -test.timeout 28s
exit $failed
