#!/usr/bin/env bash
# Records the fixtures of `symmem diff`: memory snapshots with stacks and Flight Recorder dumps of
# PyTorch's own pools, from 4 ranks. torch/snapshots.py lists the cases. Needs a PyTorch with CUDA
# and 4 GPUs, and nothing of symmem.
#
#   snapshots.sh FOLDER   writes to FOLDER, which it makes
#   RANKS                 how many ranks (4)
#   CASES                 which cases (agree extra size skew call)
#   PYTHON                the interpreter that has PyTorch (python3)
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
