#!/usr/bin/env bash
# Tests the live view on GPUs: runs that CUDA events time on each path, compared with the clock, the
# cost of a submission with and without a live view, replays, waits and faults.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
needs_gpus "times of runs"

expect 0 300 env SYMMEM_TEST_BACKEND="$BACKEND" SYMMEM_TEST_BARS=1 "$BUILD/symmem.test" -test.v \
	-test.timeout 300s -test.run '^TestGPUTimes|^TestLiveView|^TestHandler'
finish
