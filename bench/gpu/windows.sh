#!/usr/bin/env bash
# Grows a pool to 4 GiB by requests of 2 to 48 MiB, and compares windows and registration time with
# PyTorch's sizing, which needs a window for nearly every request. At most 8 windows are allowed.
#
#   SHORT     if set, 128 MiB instead of 4 GiB
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

short=()
[[ -z ${SHORT:-} ]] || short=(-test.short)
expect 0 600 env SYMMEM_TEST_BACKEND="$BACKEND" "$BUILD/symmem.test" "${short[@]}" \
	-test.run '^$' -test.bench BenchmarkGrowth -test.benchtime 3x
finish
