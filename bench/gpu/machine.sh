# shellcheck shell=bash
# What the scripts of this folder have in common; they source it. It says where the figures come
# from: the machine, its driver and GPUs, the date, the commit and the command; and keeps NVLink
# multicast off.
#
#   RANKS     how many ranks (4). No more GPUs than that are seen, the first ones of
#             CUDA_VISIBLE_DEVICES. Ranks share GPUs where there are fewer: that takes NCCL 2.30 or
#             newer, and shows what is right, not what is fast. A daemon of NVIDIA's Multi-Process
#             Service runs meanwhile, if there is one and CUDA_MPS_PIPE_DIRECTORY is not set
#   NCCL      the file of NCCL (where symmem finds it)
#   BUILD     where build.sh has put the binaries (build/gpu)
#   BACKEND   the backend (nccl)
#   RESULTS   a folder for result files of docs/measurements, which some programs write (none)

set -euo pipefail
RANKS=${RANKS:-4}
BUILD=$(cd "${BUILD:-$(dirname "${BASH_SOURCE[0]}")/../../build/gpu}" && pwd)
BACKEND=${BACKEND:-nccl}
if [[ -n ${NCCL:-} ]]; then export SYMMEM_NCCL=$NCCL; fi

# count_gpus prints how many GPUs are seen. Where nothing says so each rank is taken to have one.
count_gpus() {
	if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
		tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .
	elif [[ -n ${SYMMEM_CUDA:-} ]]; then
		echo "${SOFTGPU_DEVICES:-4}"
	elif command -v nvidia-smi >/dev/null; then
		nvidia-smi -L | grep -c '^GPU'
	else
		echo "$RANKS"
	fi
}

# at_exit COMMAND... has a command run when the script ends, before those that were named earlier.
ending=()
at_exit() { ending=("$(printf '%q ' "$@")" ${ending[@]+"${ending[@]}"}); }
leave() {
	local command
	for command in ${ending[@]+"${ending[@]}"}; do eval "$command"; done
}
trap leave EXIT

# share lets ranks share GPUs, as symmem launch --share-gpus does it.
share() {
	local each=$(((RANKS + GPUS - 1) / GPUS))
	# With all their channels, communicators of many ranks would fill the memory.
	export NCCL_MULTI_RANK_GPU_ENABLE=1
	export NCCL_MAX_NCHANNELS=${NCCL_MAX_NCHANNELS:-4} NCCL_MAX_CTAS=${NCCL_MAX_CTAS:-4}
	# Tests whose ranks are goroutines of one process have so many.
	export SYMMEM_TEST_RANKS=${SYMMEM_TEST_RANKS:-$RANKS}
	SHARED="$RANKS ranks share $GPUS GPUs, in turns"
	if [[ -e ${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}/control ]]; then
		limit_clients "$each"
		return
	fi
	if [[ -n ${CUDA_MPS_PIPE_DIRECTORY+set} ]] || ! command -v nvidia-cuda-mps-control >/dev/null; then
		return
	fi
	CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d)
	CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
	export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
	nvidia-cuda-mps-control -d
	at_exit rm -rf "$CUDA_MPS_PIPE_DIRECTORY"
	at_exit quit_service
	# Clients count the GPUs that the daemon sees from 0.
	CUDA_VISIBLE_DEVICES=$(seq -s, 0 $((GPUS - 1)))
	limit_clients "$each"
}

# limit_clients gives each of so many ranks of a GPU its part of what the service has.
limit_clients() {
	export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-$((100 / $1))}
	# Streams that share a queue wait for each other; MPS has 96 of them for all its clients.
	local queues=$((64 / $1))
	export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-$((queues < 32 ? queues : 32))}
	SHARED="$RANKS ranks share $GPUS GPUs, side by side"
}
quit_service() { echo quit | timeout 30 nvidia-cuda-mps-control; }

# Programs without ranks of their own, such as the tests, take all GPUs that they see. SHARED says
# that ranks share them; it is empty if each has its own.
GPUS=$(count_gpus)
GPUS=$((GPUS < RANKS ? GPUS : RANKS))
((GPUS > 0)) || GPUS=1
SHARED=
shown=${CUDA_VISIBLE_DEVICES-$(seq -s, 0 $((GPUS - 1)))}
CUDA_VISIBLE_DEVICES=$(cut -d, -f"1-$GPUS" <<<"$shown")
export CUDA_VISIBLE_DEVICES
if ((GPUS < RANKS)) && [[ $BACKEND == nccl ]]; then share; fi
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

# What result files say of where they come from.
DATE=$(date -u +%F)
COMMIT=$(cat "$BUILD/COMMIT")
COMMAND="RANKS=$RANKS bench/gpu/$(basename "$0")"
MACHINE="$(nproc) processors"
if command -v nvidia-smi >/dev/null; then
	MACHINE+=", GPUs $shown of $(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c | xargs)"
	MACHINE+=", driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u | xargs)"
fi
export DATE COMMIT COMMAND MACHINE

describe() {
	echo "# $(basename "$0"), $(date -u '+%F %T') UTC, commit $COMMIT"
	echo "# $(uname -srm), $(nproc) processors, $RANKS ranks, backend $BACKEND"
	[[ -z $SHARED ]] || echo "# $SHARED: times mean nothing"
	echo "# GPUs $shown of these:"
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

# skip REASON ends a script that cannot show anything here; skip_part says so of a part of one.
skip() {
	echo "# $(basename "$0"): SKIPPED, not supported here: $*"
	exit 0
}
skip_part() { echo "# SKIPPED, not supported here: $*"; }

# needs_gpus WHAT... ends a script of times or links where ranks share GPUs.
needs_gpus() { [[ -z $SHARED ]] || skip "$* need a GPU for each rank, and $SHARED"; }

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
