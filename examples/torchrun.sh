#!/bin/sh
# torchrun.sh starts a program by PyTorch's launcher. --no_python lets it be any program, such as
# one written in Go. Run it on every machine; on one machine it needs no settings.
#
#   RANKS=4 ./torchrun.sh                                            one machine
#
#   export NODES=2 RANKS=8 MASTER_ADDR=node0 SYMMEM_TOKEN=0123456789abcdef0123456789abcdef
#   ./torchrun.sh symmem verify                                      on each of two
#
# Newer versions of torchrun serve the store that ranks meet at. Where torchrun does not, rank 0
# does, and the token keeps strangers out: the same text on all machines, that of: openssl rand -hex
# 16. Options have underscores, which old versions want and new ones take.
set -eu
RANKS=${RANKS:-2}
NODES=${NODES:-1}
TORCHRUN=${TORCHRUN:-torchrun}
SYMMEM=${SYMMEM:-symmem}
[ $# -gt 0 ] || set -- "$SYMMEM" verify
if [ "$NODES" -eq 1 ]; then
	exec "$TORCHRUN" --standalone --nproc_per_node "$RANKS" --no_python "$@"
fi
: "${MASTER_ADDR:?must name the first machine}" "${SYMMEM_TOKEN:?is the secret of the job}"
export SYMMEM_TOKEN
exec "$TORCHRUN" --nnodes "$NODES" --nproc_per_node "$RANKS" --rdzv_backend c10d \
	--rdzv_endpoint "$MASTER_ADDR:${MASTER_PORT:-29500}" --rdzv_id "${JOB:-symmem}" --no_python "$@"
