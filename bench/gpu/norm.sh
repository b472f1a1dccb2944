#!/usr/bin/env bash
# All-reduce, residual and RMSNorm in one call, without and with quantization, against an all-reduce of
# the same size: the norm may take 1 us or 15 percent longer, quantization 3 percent more.
#
#   NORM    shapes to measure, such as hidden=4096/rows=16 (all)
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
needs_gpus "times of norms"

SYMMEM_TEST_BACKEND=$BACKEND SYMMEM_TEST_BARS=1 expect 0 600 "$BUILD/symmem.test" -test.run '^$' \
	-test.timeout 600s -test.benchtime 21x -test.bench "^BenchmarkNorm\$/${NORM:-.}"
finish
