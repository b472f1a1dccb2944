#!/usr/bin/env bash
# Two machines that are one: half of the ranks have another NCCL_HOSTID, and NCCL's data goes
# through sockets. Sums must be right all the same. INTERFACE names the network (lo).
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

export NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=${INTERFACE:-lo}
expect 0 180 "${spread[@]}" symmem verify --backend "$BACKEND" --churn 100 --skew
expect 0 180 "${spread[@]}" symmem verify --backend "$BACKEND" --check every --groups 3
expect 0 300 "${spread[@]}" symmem verify --backend "$BACKEND" --from-round 1 --rounds 4 \
	--max-bytes 1M
expect 0 180 "${spread[@]}" symmem bench collective --backend "$BACKEND" --path auto \
	--sizes 1K,64K,1M,16M
SYMMEM_TEST_BACKEND=$BACKEND expect 0 180 "$BUILD/symmem.test" -test.v -test.timeout 180s \
	-test.run '^TestFirstCallsAreCapturedBetweenMachines$'
finish
