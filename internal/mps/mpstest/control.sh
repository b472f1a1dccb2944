#!/bin/sh
# Replaces nvidia-cuda-mps-control in tests; see control.go.
set -eu
at=$CUDA_MPS_PIPE_DIRECTORY
if [ "${1-}" = -d ]; then
	if [ -n "${SYMMEM_TEST_MPS_BROKEN-}" ]; then
		echo "An instance of this daemon is already running" >&2
		exit 1
	fi
	setsid sleep 1000 &
	echo $! >"$at/nvidia-cuda-mps-control.pid"
	: >"$at/control"
	echo "start of ${CUDA_VISIBLE_DEVICES-all}" >>"$SYMMEM_TEST_MPS_LOG"
else
	read -r word
	echo "$word" >>"$SYMMEM_TEST_MPS_LOG"
	kill "$(cat "$at/nvidia-cuda-mps-control.pid")"
fi
