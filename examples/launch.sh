#!/bin/sh
# launch.sh starts a program on the GPUs of this machine by symmem itself: no Python and no MPI.
#
#   RANKS=4 ./launch.sh                    symmem verify on 4 ranks
#   RANKS=4 ./launch.sh python train.py    a PyTorch program: it finds torchrun's variables
#
# A rank that dies is named; the others are ended 10 seconds later. Ctrl-C reaches all of them.
set -eu
RANKS=${RANKS:-2}
SYMMEM=${SYMMEM:-symmem}
[ $# -gt 0 ] || set -- "$SYMMEM" verify
exec "$SYMMEM" launch -n "$RANKS" -- "$@"
