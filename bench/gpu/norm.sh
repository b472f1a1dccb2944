#!/usr/bin/env bash
# Measures all-reduce, residual and RMSNorm in one call against three kernels: an all-reduce (of the
# direct path, and of NCCL), an addition and an RMSNorm. The call must not be slower than the three.
#
#   NORM    shapes to measure, such as hidden=4096/rows=16 (all)
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
needs_gpus "times of norms"

SYMMEM_TEST_BACKEND=$BACKEND SYMMEM_TEST_BARS=1 expect 0 600 "$BUILD/symmem.test" -test.run '^$' \
	-test.timeout 600s -test.benchtime 21x -test.bench "^BenchmarkNorm\$/${NORM:-.}"
finish
