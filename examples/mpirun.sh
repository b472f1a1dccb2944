#!/bin/bash
# mpirun.sh starts a program with mpirun of Open MPI, MPICH or Intel MPI. The program itself does
# not need MPI.
#
#   RANKS=4 ./mpirun.sh                                      one machine
#   HOSTS=node0,node1 RANKS=16 PER_NODE=8 ./mpirun.sh        two machines with 8 GPUs each
#   MPIRUN=mpirun.mpich RANKS=4 ./mpirun.sh
#
# On several machines the ranks meet at a store that rank 0 serves on the first machine. A token
# protects the store. Open MPI forwards only the variables that -x names; MPICH forwards all.
set -euo pipefail
RANKS=${RANKS:-2}
HOSTS=${HOSTS:-}
MPIRUN=${MPIRUN:-mpirun}
SYMMEM=${SYMMEM:-symmem}
[ $# -gt 0 ] || set -- "$SYMMEM" verify

arguments=(-n "$RANKS")
open_mpi=false
if "$MPIRUN" --version 2>/dev/null | grep -qi 'open mpi\|openrte'; then
	open_mpi=true
	# Start all ranks even if Open MPI assumes that the machine has fewer slots.
	arguments+=(--oversubscribe --bind-to none)
	# Open MPI refuses to run as root without this option; containers often run as root.
	[ "$(id -u)" -ne 0 ] || arguments+=(--allow-run-as-root)
fi
if [ -n "$HOSTS" ]; then
	PER_NODE=${PER_NODE:?is the number of ranks on each machine}
	export MASTER_ADDR=${MASTER_ADDR:-${HOSTS%%,*}}
	export MASTER_PORT=${MASTER_PORT:-29500}
	SYMMEM_TOKEN=${SYMMEM_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
	export SYMMEM_TOKEN
	if $open_mpi; then
		arguments+=(--host "${HOSTS//,/:$PER_NODE,}:$PER_NODE" --map-by "ppr:$PER_NODE:node"
			-x MASTER_ADDR -x MASTER_PORT -x SYMMEM_TOKEN)
	else
		arguments+=(-hosts "$HOSTS" -ppn "$PER_NODE")
	fi
fi
exec "$MPIRUN" "${arguments[@]}" "$@"
