#!/usr/bin/env bash
# Tests and measures checked pads in Triton and CUDA kernels on GPUs. Build with torch-build.sh.
#
#   RANKS    number of ranks (2)
#   KRAKEN   checkout of github.com/meta-pytorch/kraken; without it, times and kraken are skipped
#   PARTS    parts to run (signals cuda faults killed times example kraken)
#   PYTHON   interpreter with PyTorch and Triton (python3)
# shellcheck source-path=SCRIPTDIR source=machine.sh
RANKS=${RANKS:-2}
. "$(dirname "$0")/machine.sh"
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$BUILD/python:$here/torch" PYTHONDONTWRITEBYTECODE=1

for name in ${PARTS:-signals cuda faults killed times example kraken}; do
	begin=$SECONDS
	case $name in
	example) program=("$here/../../examples/all_gather_matmul.py") ;;
	*) program=("$here/torch/device.py" "$name") ;;
	esac
	if [[ ($name == times || $name == kraken) && -z ${KRAKEN:-} ]]; then
		skip_part "$name: KRAKEN names no checkout"
		continue
	fi
	bounded 60 "$python" "$here/torch/launch.py" "$RANKS" 45 "${program[@]}" || fail "$name"
	echo "# part $name took $((SECONDS - begin)) s"
done
finish
