#!/bin/sh
# launch.sh starts a program on this machine's GPUs with symmem's own launcher, without Python
# or MPI.
#
#   RANKS=4 ./launch.sh                    symmem verify on 4 ranks
#   RANKS=4 ./launch.sh python train.py    a PyTorch program, with torchrun's variables
#
# If a rank dies, the launcher names it and ends the other ranks 10 seconds later. Ctrl-C reaches
# all ranks.
set -eu
RANKS=${RANKS:-2}
SYMMEM=${SYMMEM:-symmem}
[ $# -gt 0 ] || set -- "$SYMMEM" verify
exec "$SYMMEM" launch -n "$RANKS" -- "$@"
