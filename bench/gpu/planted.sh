#!/usr/bin/env bash
# Records programs with planted differences on 4 ranks with PyTorch's own pools (torch/planted.py).
# It needs a PyTorch with CUDA, but not symmem. With fewer than 4 GPUs, ranks share GPUs, and the
# Flight Recorder's dumps are not recorded.
#
#   planted.sh PROGRAMS FOLDER   runs the programs of a file and writes an archive for each rank
#   SECONDS_RUNNING              time after which no program starts (60)
#   PYTHON                       interpreter with PyTorch (python3)
#
#   go test ./cmd/symmem/internal/diff/load -run WritePrograms -programs-file PROGRAMS
#   torch/planted_pack.py packs the archives for TestRecordedPrograms
set -euo pipefail
programs=${1:?a file with programs}
folder=${2:?a folder for the archives}
mkdir -p "$folder"
export NCCL_NVLS_ENABLE=0 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
limit=${SECONDS_RUNNING:-60}
exec timeout --kill-after=5 "$((limit + 45))" "${PYTHON:-python3}" -m torch.distributed.run \
	--standalone --nproc-per-node 4 "$(dirname "$0")/torch/planted.py" "$programs" "$folder" "$limit"
