# shellcheck shell=bash
# The functions that the scripts of this folder share; they source this file. It prints the origin
# of the figures (the machine, its driver and GPUs, the date, the commit and the command) and keeps
# NVLink multicast off.
#
#   RANKS     number of ranks (4). Only the first GPUs of CUDA_VISIBLE_DEVICES are used, one a rank.
#             If there are fewer GPUs, ranks share them. That needs NCCL 2.30 or newer, and times
#             mean nothing. A daemon of NVIDIA's Multi-Process Service then runs, if one is
#             installed and CUDA_MPS_PIPE_DIRECTORY is not set
#   NCCL      file of NCCL (as symmem finds it)
#   BUILD     folder with the binaries of build.sh (build/gpu)
#   BACKEND   backend (nccl)
#   RESULTS   folder for result files of docs/measurements, which some programs write (none)

set -euo pipefail
RANKS=${RANKS:-4}
BUILD=$(cd "${BUILD:-$(dirname "${BASH_SOURCE[0]}")/../../build/gpu}" && pwd)
BACKEND=${BACKEND:-nccl}
if [[ -n ${NCCL:-} ]]; then export SYMMEM_NCCL=$NCCL; fi

# count_gpus prints the number of visible GPUs. If it is unknown, each rank is taken to have one.
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

# at_exit COMMAND... runs a command when the script ends, before the commands named earlier.
ending=()
at_exit() { ending=("$(printf '%q ' "$@")" ${ending[@]+"${ending[@]}"}); }
leave() {
	local command
	for command in ${ending[@]+"${ending[@]}"}; do eval "$command"; done
}
trap leave EXIT

# choose_parts PART... sets `parts` to those that PARTS lists, or to all. It exits with status 2 if
# PARTS lists another.
choose_parts() {
	local part
	# shellcheck disable=SC2206 # a list
	parts=(${PARTS:-$*})
	for part in "${parts[@]}"; do
		[[ " $* " == *" $part "* ]] || {
			echo "no part is named $part; the parts are $*" >&2
			exit 2
		}
	done
}

# share lets ranks share GPUs as symmem launch --share-gpus does.
share() {
	local each=$(((RANKS + GPUS - 1) / GPUS))
	# With the default number of channels, the communicators of many ranks would fill the memory.
	export NCCL_MULTI_RANK_GPU_ENABLE=1
	export NCCL_MAX_NCHANNELS=${NCCL_MAX_NCHANNELS:-4} NCCL_MAX_CTAS=${NCCL_MAX_CTAS:-4}
	# The ranks of some tests are goroutines of one process.
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
	# Clients number the GPUs that the daemon sees from 0.
	CUDA_VISIBLE_DEVICES=$(seq -s, 0 $((GPUS - 1)))
	limit_clients "$each"
}

# limit_clients divides the resources of the service among the given number of ranks of a GPU.
limit_clients() {
	export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-$((100 / $1))}
	# Streams that share a queue wait for each other. MPS has 96 queues for all its clients.
	local queues=$((64 / $1))
	export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-$((queues < 32 ? queues : 32))}
	SHARED="$RANKS ranks share $GPUS GPUs, side by side"
}
quit_service() { echo quit | timeout 30 nvidia-cuda-mps-control; }

# Programs that are not ranks, such as the tests, use all visible GPUs. SHARED is set if ranks share
# them, and empty if each rank has its own.
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

# spread runs the ranks of a command on two simulated machines.
# shellcheck disable=SC2016 # the ranks' shells expand it
half='
if [ $((2 * RANK)) -lt "$WORLD_SIZE" ]; then export NCCL_HOSTID=a; else export NCCL_HOSTID=b; fi
exec "$@"'
# shellcheck disable=SC2034 # scripts use it
spread=(symmem launch -n "$RANKS" -- bash -c "$half" half)

# The first failure; each script ends with finish.
failed=0

# The origin that result files record.
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

# bounded SECONDS COMMAND... prints and runs a command and prints its exit code. The code is 124 if
# the command exceeds the time limit and is killed.
bounded() {
	local seconds=$1 code=0
	shift
	printf '\n$ %s\n' "$*"
	timeout --kill-after=30 "$seconds" "$@" || code=$?
	echo "# exit code $code"
	return "$code"
}

# expect CODE SECONDS COMMAND... requires an exit code.
expect() {
	local want=$1 code=0
	shift
	bounded "$@" || code=$?
	[[ $code == "$want" ]] || fail "exit code $code instead of $want"
}

# expect_text CODE TEXT SECONDS COMMAND... requires an exit code and a text in the output.
expect_text() {
	local want=$1 text=$2 code=0 out
	shift 2
	out=$(bounded "$@" 2>&1) || code=$?
	printf '%s\n' "$out"
	[[ $code == "$want" ]] || fail "exit code $code instead of $want"
	grep -Eq -- "$text" <<<"$out" || fail "nothing matches $text"
}

# skip REASON ends a script that can show nothing on this machine; skip_part skips a part of one.
skip() {
	echo "# $(basename "$0"): SKIPPED, not supported here: $*"
	exit 0
}
skip_part() { echo "# SKIPPED, not supported here: $*"; }

# needs_gpus WHAT... ends a script that measures times or links if ranks share GPUs.
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
