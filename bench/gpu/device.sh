#!/usr/bin/env bash
# Tests checked pads in Triton and CUDA kernels on GPUs, and compares handles with PyTorch's, also
# in functions of other libraries, where only the rendezvous is replaced. Build with torch-build.sh.
#
#   RANKS       number of ranks (2)
#   KRAKEN      checkout of github.com/meta-pytorch/kraken of May 2026 or later; without it, times,
#               kraken and exchange are skipped
#   FLASHINFER  folder with the package flashinfer; without it, flashinfer is skipped
#   PARTS       parts to run (signals cuda faults killed streams members times example kraken
#               exchange flashinfer)
#   PYTHON      interpreter with PyTorch and Triton (python3)
# shellcheck source-path=SCRIPTDIR source=machine.sh
RANKS=${RANKS:-2}
. "$(dirname "$0")/machine.sh"
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$BUILD/python:$here/torch" PYTHONDONTWRITEBYTECODE=1
choose_parts signals cuda faults killed streams members times example kraken exchange flashinfer

for name in "${parts[@]}"; do
	begin=$SECONDS
	needs=
	case $name in
	example) program=("$here/../../examples/all_gather_matmul.py") ;;
	times | kraken | exchange) needs=KRAKEN ;;&
	flashinfer) needs=FLASHINFER ;;&
	members | times | kraken | exchange | flashinfer)
		program=("$here/torch/device_peers.py" "$name")
		;;
	*) program=("$here/torch/device.py" "$name") ;;
	esac
	if [[ -n $needs && -z ${!needs:-} ]]; then
		skip_part "$name: $needs names no folder"
		continue
	fi
	bounded 60 "$python" "$here/torch/launch.py" "$RANKS" 45 "${program[@]}" || fail "$name"
	echo "# part $name took $((SECONDS - begin)) s"
done
finish
