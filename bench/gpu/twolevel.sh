#!/usr/bin/env bash
# Tests two levels on several machines that are simulated on one (NCCL_HOSTID): direct kernels run
# inside each machine, NCCL between machines. Sums must be right bit by bit, captured or not, and
# symmem tune must choose the path only where it is faster. The machines' network is the loopback
# interface, so the times compare the paths and say nothing about a real network.
#
#   SIZES   sizes to measure (64K,1M,16M,64M)
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

export NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_SOCKET_IFNAME=${INTERFACE:-lo}

ops=all_reduce,all_gather,reduce_scatter
expect 0 60 "$BUILD/nccl.test" -test.v -test.timeout 60s -test.run '^TestTwoLevels'
expect 0 60 "${spread[@]}" symmem verify --backend "$BACKEND" --path two-level --churn 100 --skew
expect 0 90 "${spread[@]}" symmem bench collective --backend "$BACKEND" --compare --graph \
	--ops "$ops" --sizes "${SIZES:-64K,1M,16M,64M}" --dtype bfloat16 --batches 5 --batch 4ms
table=$(mktemp)
at_exit rm -f "$table"
expect 0 90 "${spread[@]}" symmem tune --backend "$BACKEND" --quick --ops "$ops" \
	-b 64K -e 64M -f 8 --output "$table"
SYMMEM_TUNING=$table expect 0 60 "${spread[@]}" symmem verify --backend "$BACKEND" --path auto \
	--size 4Mi --cases 2
finish
