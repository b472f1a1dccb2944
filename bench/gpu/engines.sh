#!/usr/bin/env bash
# vLLM's and SGLang's own groups with symmem's plug-ins, on GPUs: every call is compared with the
# engine's own and timed against it, in graphs and outside of them. Build with engines-build.sh.
# With 4 GPUs it takes about four minutes.
#
#   RANKS     how many ranks (4)
#   ENGINES   which engines (vllm sglang)
#   CASES     names of calls, or how they begin, between commas (all)
#   TOKENS    numbers of tokens, between spaces (1 8 32 128 512 2048 8192)
#   ALL       1 also takes over calls that are the engine's on GPUs, to measure them
#   SECONDS_EACH   how long an engine may take (240)
#   PYTHON    the interpreter that has PyTorch (python3)
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
here=$(cd "$(dirname "$0")/torch" && pwd)
python=${PYTHON:-python3}
files=$(mktemp -d)
at_exit rm -rf "$files"
tar -C "$files" -xJf "$BUILD/engines.tar.xz"
export PYTHONPATH="$BUILD/python:$here:$here/../../../python/tests/programs:$files"
export PYTHONDONTWRITEBYTECODE=1 VLLM_LOGGING_LEVEL=INFO
"$python" -c 'import torch; print("# PyTorch", torch.__version__, "NCCL", torch.cuda.nccl.version())'
# The engines load NCCL by this name; it has to be the file that PyTorch has loaded.
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
