# shellcheck shell=bash
# What the scripts of this folder have in common; they source it. It says where the figures come
# from: the machine, its driver and GPUs, the date, the commit and the command; and keeps NVLink
# multicast off.
#
#   RANKS     how many ranks, a GPU each (4). No more GPUs than that are seen, the first ones of
#             CUDA_VISIBLE_DEVICES
#   BUILD     where build.sh has put the binaries (build/gpu)
#   BACKEND   the backend (nccl)

set -euo pipefail
RANKS=${RANKS:-4}
BUILD=$(cd "${BUILD:-$(dirname "${BASH_SOURCE[0]}")/../../build/gpu}" && pwd)
BACKEND=${BACKEND:-nccl}
# Programs without ranks of their own, such as the tests, take all GPUs that they see.
CUDA_VISIBLE_DEVICES=$(cut -d, -f"1-$RANKS" <<<"${CUDA_VISIBLE_DEVICES-$(seq -s, 0 $((RANKS - 1)))}")
export CUDA_VISIBLE_DEVICES
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
PATH=$BUILD:$PATH

# spread starts the ranks of a command on two machines that are one, as NCCL and symmem see it.
# shellcheck disable=SC2016 # the ranks' shells expand it
half='
if [ $((2 * RANK)) -lt "$WORLD_SIZE" ]; then export NCCL_HOSTID=a; else export NCCL_HOSTID=b; fi
exec "$@"'
# shellcheck disable=SC2034 # scripts use it
spread=(symmem launch -n "$RANKS" -- bash -c "$half" half)

# The first thing that failed; each script ends with finish.
failed=0

describe() {
	echo "# $(basename "$0"), $(date -u '+%F %T') UTC, commit $(cat "$BUILD/COMMIT")"
	echo "# $(uname -srm), $(nproc) processors, $RANKS ranks, backend $BACKEND"
	echo "# GPUs $CUDA_VISIBLE_DEVICES of these:"
	if command -v nvidia-smi >/dev/null; then
		nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u | sed 's/^/# driver /'
		nvidia-smi -L | sed 's/^/# /'
	else
		echo "# no nvidia-smi"
	fi
}

# bounded SECONDS COMMAND... runs a command, prints it before and its exit code after. A command
# that goes on for too long is ended, and has 124.
bounded() {
	local seconds=$1 code=0
	shift
	printf '\n$ %s\n' "$*"
	timeout --kill-after=30 "$seconds" "$@" || code=$?
	echo "# exit code $code"
	return "$code"
}

# expect CODE SECONDS COMMAND... demands an exit code.
expect() {
	local want=$1 code=0
	shift
	bounded "$@" || code=$?
	[[ $code == "$want" ]] || fail "exit code $code instead of $want"
}

# expect_text CODE TEXT SECONDS COMMAND... demands an exit code and a text that matches.
expect_text() {
	local want=$1 text=$2 code=0 out
	shift 2
	out=$(bounded "$@" 2>&1) || code=$?
	printf '%s\n' "$out"
	[[ $code == "$want" ]] || fail "exit code $code instead of $want"
	grep -Eq -- "$text" <<<"$out" || fail "nothing matches $text"
}

fail() {
	echo "# FAILED: $*"
	failed=1
}

finish() {
	if ((failed)); then
		echo "# $(basename "$0"): FAILED"
		exit 1
	fi
	echo "# $(basename "$0"): all is well"
}

describe
