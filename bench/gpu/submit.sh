#!/usr/bin/env bash
# What it costs to submit a collective, against NCCL's own call (the bar is 300 ns over it), and to
# end a scope with nothing new (50 ns).
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

# CUDA and NCCL have threads of their own, so a rank is not bound to one processor, but for the
# figure that shows what that does.
submit=(symmem bench submit --backend "$BACKEND" --ranks "$RANKS")
expect 0 300 "${submit[@]}" --unbound --enforce
expect 0 300 "${submit[@]}" --unbound --check off
expect 0 300 "${submit[@]}"
expect 0 300 symmem bench scope --backend "$BACKEND" --segments 4,16 --groups 1,4 --enforce
finish
