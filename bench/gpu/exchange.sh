#!/usr/bin/env bash
# Measures the exchange of a mixture-of-experts layer: dispatch and combine, in one launch each, of
# all rows or only of those that experts need (Group.Dispatch and Combine). It compares them with
# vLLM's default (a group of NCCL's all-gathers, and a reduce-scatter) and with the time that the
# bytes take at the speed of the links. It also compares Permute and Unpermute with copies.
#
#   EXCHANGE   shapes to measure, such as DeepSeek-V3/uniform/tokens=128 (all)
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
needs_gpus "times of exchanges"

SYMMEM_TEST_BACKEND=$BACKEND expect 0 100 "$BUILD/symmem.test" -test.v -test.timeout 100s \
	-test.run '^Test(Rows|LargeRows|CapturedRows|Routes|CapturedRoutes|RouteNames|Permuted|CapturedPermutations)'
SYMMEM_TEST_BACKEND=$BACKEND expect 0 300 "$BUILD/symmem.test" -test.v -test.run '^$' \
	-test.timeout 300s -test.benchtime 7x -test.bench "^BenchmarkExchange\$/${EXCHANGE:-.}"
SYMMEM_TEST_BACKEND=$BACKEND expect 0 100 "$BUILD/symmem.test" -test.v -test.run '^$' \
	-test.timeout 100s -test.benchtime 7x -test.bench '^BenchmarkPermute$'
finish
