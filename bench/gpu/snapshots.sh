#!/usr/bin/env bash
# Records the fixtures of `symmem diff` from 4 ranks: memory snapshots with stacks, and Flight
# Recorder dumps, of PyTorch's own pools. torch/snapshots.py lists the cases. It needs a PyTorch
# with CUDA and 4 GPUs, but not symmem.
#
#   snapshots.sh FOLDER   creates FOLDER and writes to it
#   RANKS                 number of ranks (4)
#   CASES                 cases to record (agree extra size skew call)
#   PYTHON                interpreter with PyTorch (python3)
set -euo pipefail
folder=${1:?a folder for the files}
mkdir -p "$folder"
program=$(dirname "$0")/torch/snapshots.py
export NCCL_NVLS_ENABLE=0 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
code=0
for name in ${CASES:-agree extra size skew call}; do
	timeout --kill-after=10 120 "${PYTHON:-python3}" -m torch.distributed.run --standalone \
		--nproc-per-node "${RANKS:-4}" "$program" "$folder" "$name" || {
		echo "# case $name FAILED"
		code=1
	}
done
ls -l "$folder"
exit "$code"
