#!/usr/bin/env bash
# Runs the groups of vLLM and SGLang with symmem's plug-ins on GPUs. It compares every call with the
# engine's own and measures both, in graphs and outside. Build with engines-build.sh. With 4 GPUs it
# takes about four minutes.
#
#   RANKS     number of ranks (4)
#   ENGINES   engines to run (vllm sglang)
#   CASES     names or prefixes of calls, separated by commas (all)
#   TOKENS    numbers of tokens, separated by spaces (1 8 32 128 512 2048 8192)
#   ALL       if 1, symmem also takes over calls that it leaves to the engine, to measure them
#   PARTS     parts to run; calls come last (calls compiled decoder norms)
#   SECONDS_EACH   time limit for an engine (240)
#   PYTHON    interpreter with PyTorch (python3)
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
choose_parts calls compiled decoder norms
here=$(cd "$(dirname "$0")/torch" && pwd)
python=${PYTHON:-python3}
files=$(mktemp -d)
at_exit rm -rf "$files"
tar -C "$files" -xJf "$BUILD/engines.tar.xz"
export PYTHONPATH="$BUILD/python:$here:$here/../../../python/tests/programs:$files"
export PYTHONDONTWRITEBYTECODE=1 VLLM_LOGGING_LEVEL=INFO
"$python" -c 'import torch; print("# PyTorch", torch.__version__, "NCCL", torch.cuda.nccl.version())'
# The engines load NCCL by this name. It must be the file that PyTorch has loaded.
nccl=$("$python" -c 'import re, torch; print(re.search("/.*libnccl.so.*", open("/proc/self/maps").read())[0])')
export VLLM_NCCL_SO_PATH=$nccl SGLANG_NCCL_SO_PATH=$nccl
for engine in ${ENGINES:-vllm sglang}; do
	code=0
	limit=${SECONDS_EACH:-240}
	bounded $((limit + 15)) "$python" "$here/launch.py" "$RANKS" "$limit" \
		"$here/engines.py" "$engine" || code=$?
	((code == 0)) || fail "$engine"
done
finish
