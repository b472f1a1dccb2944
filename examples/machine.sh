#!/bin/sh
# machine.sh starts the ranks of one machine in a job on several machines that has no launcher. Run
# it on each machine, with a different NODE and otherwise the same settings:
#
#   export NODES=2 RANKS=8 MASTER_ADDR=10.0.0.1 SYMMEM_TOKEN=0123456789abcdef0123456789abcdef
#   NODE=0 ./machine.sh symmem verify --backend nccl      on 10.0.0.1, which serves the store
#   NODE=1 ./machine.sh symmem verify --backend nccl      on the other machine
#
# RANKS is the number of ranks on each machine. SYMMEM_TOKEN is a secret, such as the output of
# "openssl rand -hex 16". Rank 0 listens on MASTER_PORT, and every rank listens on a port that the
# system chooses. The script exits with the largest exit code of its ranks. If a rank fails, the
# script does not end the other ranks; they detect the failure and report it.
set -eu
: "${NODE:?is the number of this machine, from 0}" "${NODES:?is the number of machines}"
: "${RANKS:?is the number of ranks on each machine}"
: "${MASTER_ADDR:?is the address of machine 0}" "${SYMMEM_TOKEN:?is the secret of the job}"
export MASTER_ADDR SYMMEM_TOKEN MASTER_PORT="${MASTER_PORT:-29500}"
export WORLD_SIZE=$((NODES * RANKS)) LOCAL_WORLD_SIZE="$RANKS"
[ $# -gt 0 ] || set -- "${SYMMEM:-symmem}" verify

processes=
# Without the trap, Ctrl-C or the end of a container would leave ranks running.
trap 'kill $processes 2>/dev/null || true' INT TERM
local=0
while [ "$local" -lt "$RANKS" ]; do
	LOCAL_RANK=$local RANK=$((NODE * RANKS + local)) "$@" &
	processes="$processes $!"
	local=$((local + 1))
done
worst=0
for process in $processes; do
	code=0
	wait "$process" || code=$?
	[ "$code" -le "$worst" ] || worst=$code
done
exit "$worst"
