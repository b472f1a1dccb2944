#!/usr/bin/env bash
# Tests the direct path between machines of one NVLink fabric, which are simulated on one machine
# (NCCL_HOSTID): two machines, and a machine for each rank. Between machines, memory is shared by
# fabric handles instead of descriptors. That needs an IMEX channel. If there is none, the script
# creates one, which needs root, and removes it at the end.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
needs_gpus "links between GPUs"

channels=/dev/nvidia-caps-imex-channels
launches=(env NCCL_NET=Socket NCCL_IB_DISABLE=1 "NCCL_SOCKET_IFNAME=${INTERFACE:-lo}" "${spread[@]}")

without_channel() {
	expect_text 0 'path taken was plain: .*has no fabric handles: .*IMEX channel' 120 \
		"${launches[@]}" env SYMMEM_PATH=direct symmem verify --backend "$BACKEND" --rounds 1
}

remove_channel() {
	rm -f "$channels/channel0"
	rmdir "$channels" 2>/dev/null || true
}

make_channel() {
	local major
	major=$(awk '$2 == "nvidia-caps-imex-channels" { print $1 }' /proc/devices)
	if [[ $(id -u) != 0 || -z $major ]]; then
		fail "no $channels/channel0, and this is not root on a machine that can have one"
		finish
	fi
	at_exit remove_channel
	mkdir -p "$channels"
	mknod -m 600 "$channels/channel0" c "$major" 0
}

if [[ ! -e $channels/channel0 ]]; then
	without_channel
	make_channel
fi

expect 0 120 "${launches[@]}" env SYMMEM_PATH=direct symmem verify --backend "$BACKEND" --check every \
	--groups 3 --churn 50
expect_text 0 '"took":"direct"' 120 "${launches[@]}" env SYMMEM_PATH=direct symmem verify \
	--backend "$BACKEND" --rounds 1 --json
expect 0 200 "${launches[@]}" env SYMMEM_PATH=direct symmem verify --backend "$BACKEND" \
	--from-round 1 --rounds 12 --max-bytes 1M

# Each rank is on its own machine: all kernels, all calls compared bit by bit, and calls that
# differ.
SYMMEM_TEST_MACHINES=1 expect 0 300 "$BUILD/nccl.test" -test.v -test.timeout 300s -test.run \
	'^Test(DirectIsRight|EveryKernelOnce|Norms|TimeoutNamesAMissingRank$|PathsMix|Eager|Large|GroupsWork|Recorded)'
SYMMEM_TEST_MACHINES=1 expect 0 120 "$BUILD/nccl.test" -test.v -test.timeout 120s -test.run \
	'^TestContract$/^mistakes$/(MismatchError_(and|everywhere)|after_a_mismatch)'
# Ranks are killed before, inside and after a kernel.
SYMMEM_TEST_BACKEND=$BACKEND SYMMEM_PATH=direct expect 0 200 \
	"$BUILD/symmem.test" -test.v -test.timeout 200s -test.run '^TestErrorNamesKilledRankOfOtherMachine'

# The same kernels run on memory shared in either way.
bench=(symmem bench collective --backend "$BACKEND" --ops all_reduce --path direct --graph
	--sizes "1K,64K,1M,64M" --dtype bfloat16)
expect 0 120 "${bench[@]}" --ranks "$RANKS"
expect 0 120 "${launches[@]}" "${bench[@]}"
finish
