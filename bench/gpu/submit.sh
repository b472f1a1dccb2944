#!/usr/bin/env bash
# What it costs to submit a collective, against NCCL's own call (the bar is 300 ns over it), and to
# end a scope with nothing new (50 ns).
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
