#!/bin/sh
# torchrun.sh starts a program with PyTorch's launcher. With --no_python it can be any program, such
# as one written in Go. Run the script on every machine; on a single machine it needs no settings.
#
#   RANKS=4 ./torchrun.sh                                            one machine
#
#   export NODES=2 RANKS=8 MASTER_ADDR=node0 SYMMEM_TOKEN=0123456789abcdef0123456789abcdef
#   ./torchrun.sh symmem verify                                      on each of two machines
#
# Newer versions of torchrun serve the store at which ranks meet. With older versions rank 0 serves
# it. SYMMEM_TOKEN, which protects the store, is a secret that is the same on all machines, such as
# the output of "openssl rand -hex 16". The options have underscores, which all versions of torchrun accept.
set -eu
RANKS=${RANKS:-2}
NODES=${NODES:-1}
TORCHRUN=${TORCHRUN:-torchrun}
SYMMEM=${SYMMEM:-symmem}
[ $# -gt 0 ] || set -- "$SYMMEM" verify
if [ "$NODES" -eq 1 ]; then
	exec "$TORCHRUN" --standalone --nproc_per_node "$RANKS" --no_python "$@"
fi
: "${MASTER_ADDR:?is the address of the first machine}" "${SYMMEM_TOKEN:?is the secret of the job}"
export SYMMEM_TOKEN
exec "$TORCHRUN" --nnodes "$NODES" --nproc_per_node "$RANKS" --rdzv_backend c10d \
	--rdzv_endpoint "$MASTER_ADDR:${MASTER_PORT:-29500}" --rdzv_id "${JOB:-symmem}" --no_python "$@"
