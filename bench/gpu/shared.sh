#!/usr/bin/env bash
# Several ranks on one GPU: shows what is right, not what is fast. NCCL 2.30 or later lets ranks
# share a GPU, and NVIDIA's Multi-Process Service lets their kernels run side by side.
#
#   NCCL    a libnccl.so.2 of 2.30 or later (that of the system)
#   RANKS   ranks that share the GPU (4)
#   SEED    where random programs come from (1)
# shellcheck source-path=SCRIPTDIR source=machine.sh
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0}
. "$(dirname "$0")/machine.sh"

# With all their channels, communicators of many ranks would fill the memory.
export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_NCHANNELS=4 NCCL_MAX_CTAS=4
if [[ -n ${NCCL:-} ]]; then export SYMMEM_NCCL=$NCCL; fi
CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d)
CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((100 / RANKS))
# Streams that share a queue wait for each other; MPS has 96 of them for all its clients.
export CUDA_DEVICE_MAX_CONNECTIONS=$((64 / RANKS))
nvidia-cuda-mps-control -d
trap 'echo quit | nvidia-cuda-mps-control' EXIT

launch=(symmem launch -n "$RANKS" --)
for path in plain window direct; do
	expect 0 120 env SYMMEM_PATH=$path "${launch[@]}" symmem verify --backend nccl \
		--churn 200 --skew --seed "${SEED:-1}" --groups 3
done
expect_text 1 Divergence 120 "${launch[@]}" symmem verify --backend nccl --placement address \
	--churn 200 --skew --seed "${SEED:-1}" --check every
export SYMMEM_TEST_BACKEND=nccl
random=("$BUILD/chaos.test" -test.v -test.timeout 270s -seed "${SEED:-1}" -programs 40 -at-once 1)
expect 0 280 "${random[@]}" -test.run MessagesOn
# These have up to 8 ranks, whose queues have to do.
expect 0 280 env CUDA_DEVICE_MAX_CONNECTIONS=8 "${random[@]}" -test.run UnevenOn
cells=("$BUILD/chaos.test" -test.v -test.timeout 590s -test.parallel 1 -all-cells -test.run)
expect 0 600 "${cells[@]}" 'TestPageOnAGPU/.*/.*/gpu$'
# Without the service: NCCL's window kernels are left waiting there, and the end of a process with
# one is a fault for all clients of the service.
expect 0 600 env -u CUDA_MPS_PIPE_DIRECTORY "${cells[@]}" 'TestPageOnAGPU/.*/.*/gpu_window$'
expect 0 150 "${launch[@]}" symmem soak --backend nccl --duration 60s
finish
