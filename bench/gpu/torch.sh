#!/usr/bin/env bash
# Runs symmem under PyTorch on GPUs. Each part is a program in bench/gpu/torch with a time limit. It
# prints PASS or FAIL with figures. The other parts run even if one fails. Build with
# torch-build.sh. With 2 GPUs, all parts take about twelve minutes.
#
#   RANKS           number of ranks (4)
#   NCCL            file of NCCL for PyTorch to use instead of its own; ranks that share a GPU need
#                   2.30 or newer
#   PARTS           parts to run, of those listed below
#   PYTHON          interpreter with PyTorch (python3)
#   SYMMEM_SGLANG   checkout of SGLang whose files the part `sglang` runs
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"
all="rounds skew stock churn diverge ops messages norms routes graph overlap graph_life cost peers
	decode model parallel streams turns attach backend comm_memory symmetric aborted faults
	endings sglang"
PARTS=${PARTS:-$all}
# shellcheck disable=SC2086 # a list
choose_parts $all first_calls guard
here=$(cd "$(dirname "$0")/torch" && pwd)
programs=$(cd "$here/../../../python/tests/programs" && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$BUILD/python:$here" PYTHONDONTWRITEBYTECODE=1
run=("$python")
if [[ -n ${NCCL:-} ]]; then run=(env "LD_PRELOAD=$NCCL" "$python"); fi
"${run[@]}" -c 'import torch; print("# PyTorch", torch.__version__, "NCCL", torch.cuda.nccl.version())'

# part SECONDS PROGRAM [ARGUMENT]... runs a program on all ranks.
part() {
	local seconds=$1 code=0
	shift
	bounded "$((seconds + 15))" "${run[@]}" "$here/launch.py" "$RANKS" "$seconds" "$@" || code=$?
	((code == 0)) || fail "$*"
}

# together SECONDS PROGRAM-AND-ARGUMENTS... runs programs at the same time, each on all ranks. None
# of them is measured. If ranks share GPUs, the programs run one after the other, because MPS has
# queues for a limited number of processes.
together() {
	local seconds=$1 out i code pids=()
	shift
	if [[ -n $SHARED ]]; then
		for ((i = 1; i <= $#; i++)); do
			local words
			read -ra words <<<"${!i}"
			part "$seconds" "$here/${words[0]}" "${words[@]:1}"
		done
		return
	fi
	out=$(mktemp -d)
	for ((i = 1; i <= $#; i++)); do
		local words
		read -ra words <<<"${!i}"
		timeout --kill-after=30 "$((seconds + 15))" "${run[@]}" "$here/launch.py" "$RANKS" "$seconds" \
			"$here/${words[0]}" "${words[@]:1}" >"$out/$i" 2>&1 &
		pids+=($!)
	done
	for ((i = 1; i <= $#; i++)); do
		code=0
		wait "${pids[i - 1]}" || code=$?
		printf '\n$ %s\n' "${!i}"
		cat "$out/$i"
		echo "# exit code $code"
		((code == 0)) || fail "${!i}"
	done
	rm -rf "$out"
}

run_part() {
	case $1 in
	rounds) part 40 -m symmem.verify --backend "$BACKEND" --callsites ;;
	skew) part 60 -m symmem.verify --backend "$BACKEND" --rounds 4 --seed 2 ;;
	stock)
		if [[ -n $SHARED ]]; then
			skip_part "PyTorch's own pools refuse the NCCL that lets ranks share a GPU"
		else
			part 60 "$here/churn.py" stock
		fi
		;;
	churn) part 75 "$here/churn.py" symmem ;;
	diverge)
		together 45 "diverge.py segment" "diverge.py tensor" "diverge.py check" "diverge.py size" \
			"churn.py diverge"
		;;
	ops) part 40 "$here/ops.py" ;;
	messages) part 60 "$here/messages.py" ;;
	norms)
		part 60 "$programs/norms.py"
		part 60 "$programs/scattered_norms.py"
		;;
	routes) part 60 "$programs/routes.py" ;;
	graph) part 50 "$here/graph.py" ;;
	overlap)
		part 400 "$here/overlap.py"
		part 40 "$here/overlap.py" opposite
		;;
	cost) part 75 "$here/cost.py" ;;
	peers) part 210 "$here/peers.py" ;;
	decode) part 75 "$here/decode.py" ;;
	model) part 75 "$here/model.py" ;;
	parallel) part 120 "$here/parallel.py" ;;
	streams) part 150 "$here/streams.py" ;;
	turns) part 60 "$here/turns.py" ;;
	first_calls) part 90 "$here/first_calls.py" ;;
	attach) part 40 "$here/attach.py" ;;
	backend)
		together 75 "backend.py values" "backend.py mixed" "backend.py models" "backend.py faults"
		part 150 "$here/backend.py" times
		;;
	comm_memory) part 60 "$here/comm_memory.py" ;;
	symmetric)
		together 45 "symmetric.py operators" "symmetric.py inductor" "symmetric.py handles" \
			"symmetric.py faults"
		;;
	guard) part 60 "$here/guard.py" ;;
	graph_life) part 150 "$here/graph_life.py" ;;
	aborted)
		together 60 "aborted.py detach" "aborted.py trim" "aborted.py scope" "aborted.py finalize" \
			"aborted.py force"
		;;
	faults)
		for way in pause stop kill differ; do
			part 60 "$here/replay_faults.py" "$way"
		done
		part 60 "$here/replay_faults.py" kill 4194304
		;;
	endings)
		together 50 "endings.py live" "endings.py scope" "endings.py group" "endings.py loader" \
			"endings.py interrupt"
		;;
	sglang)
		if [[ -n ${SYMMEM_SGLANG:-} ]]; then
			part 60 "$here/sglang_files.py" "$SYMMEM_SGLANG"
		else
			skip_part "sglang: SYMMEM_SGLANG names no checkout"
		fi
		;;
	esac
}

for name in "${parts[@]}"; do
	begin=$SECONDS
	run_part "$name"
	echo "# part $name took $((SECONDS - begin)) s"
done
finish
