#!/usr/bin/env bash
# 4 GiB that grow in requests of 2 to 48 MiB: windows and registration time, against PyTorch's
# sizing, which has a window for nearly each. The bar is 8 windows.
#
#   SHORT     if set, 128 MiB instead of 4 GiB
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

short=()
[[ -z ${SHORT:-} ]] || short=(-test.short)
expect 0 600 env SYMMEM_TEST_BACKEND="$BACKEND" "$BUILD/symmem.test" "${short[@]}" \
	-test.run '^$' -test.bench BenchmarkGrowth -test.benchtime 3x
finish
