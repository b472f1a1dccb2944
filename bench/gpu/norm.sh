#!/usr/bin/env bash
# All-reduce, residual and RMSNorm in one call, against three kernels: an all-reduce of the direct path,
# an addition and an RMSNorm. NORM has more flags of the bench.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
needs_gpus "times of norms"

read -ra more <<<"${NORM:-}"
expect 0 600 symmem bench norm --backend "$BACKEND" --ranks "$RANKS" --enforce "${more[@]}"
finish
