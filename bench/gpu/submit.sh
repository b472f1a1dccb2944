#!/usr/bin/env bash
# Measures the time to submit a collective, which may exceed that of NCCL's own call by 300 ns, and
# the time to end a scope without new memory, at most 50 ns.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
needs_gpus "times of submissions"

bench() {
	expect 0 300 env SYMMEM_TEST_BACKEND="$BACKEND" SYMMEM_TEST_BARS=1 "$BUILD/symmem.test" \
		-test.short -test.run '^$' -test.bench "$@"
}
bench BenchmarkSubmit -test.benchtime 200x -test.count 3
bench 'BenchmarkScope/.*/.*/by=scope'
finish
