#!/usr/bin/env bash
# Prints a Markdown table of what works with each version of NCCL and number of ranks, one line for
# each cell. Ranks share GPUs if there are fewer (machine.sh). A cell that exceeds its time limit
# has failed.
#
#   NCCL_DIR     folder with a libnccl.so.2 for each version, such as 2.32.3: VERSION.so,
#                VERSION.so.xz, or VERSION/libnccl.so.2
#   VERSIONS     versions to test (2.30.7 2.31.2 2.32.3)
#   RANKS_LIST   numbers of ranks (2 4 8)
#   PARTS        parts to run (verify churn contract graphs torch)
#   LIMIT        time limit for a cell, in seconds (240)
#   OUT          folder for the output of the cells (a temporary one)
#   SEED         seed of random programs (1)
#   PYTHON       interpreter with PyTorch, for the part torch (python3)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
all="verify churn contract graphs torch"
chosen=${PARTS:-$all}
for part in $chosen; do
	[[ " $all " == *" $part "* ]] || {
		echo "no part is named $part; the parts are $all" >&2
		exit 2
	}
done
limit=${LIMIT:-240}

# cell runs one part: it runs this script with CELL set, and sources another machine.sh.
cell() {
	# shellcheck source-path=SCRIPTDIR source=machine.sh
	. "$here/machine.sh"
	local path run=(symmem verify --backend "$BACKEND" --ranks "$RANKS" --seed "${SEED:-1}")
	case $CELL in
	verify)
		for path in plain window direct; do
			expect 0 "$limit" "${run[@]}" --path "$path" --groups 3 --rounds 2
		done
		;;
	churn)
		for path in plain window direct; do
			expect 0 "$limit" "${run[@]}" --path "$path" --groups 3 --churn 200 --skew
		done
		expect_text 1 'divergence: ' "$limit" "${run[@]}" --path window --churn 200 --skew \
			--placement address --check every
		;;
	contract)
		expect 0 "$limit" "$BUILD/nccl.test" -test.v -test.timeout "${limit}s" -test.run '^TestContract$'
		;;
	graphs)
		expect 0 "$limit" symmem verify --backend "$BACKEND" --ranks "$RANKS" --seed "${SEED:-1}" \
			--from-round 1 --rounds 10
		;;
	torch)
		# The parts of torch.sh print their own verdicts. Its machine.sh uses the settings made
		# here.
		PARTS="rounds churn ops graph" bounded "$limit" "$here/torch.sh" || fail "torch.sh"
		;;
	esac
	finish
}

# unpacked prints the path of a version's file, or nothing.
unpacked() {
	local at=$NCCL_DIR/$1
	if [[ -f $at.so ]]; then
		echo "$at.so"
	elif [[ -f $at/libnccl.so.2 ]]; then
		echo "$at/libnccl.so.2"
	elif [[ -f $at.so.xz ]]; then
		mkdir -p "$work/$1"
		[[ -f $work/$1/libnccl.so.2 ]] || unpack "$at.so.xz" "$work/$1/libnccl.so.2"
		echo "$work/$1/libnccl.so.2"
	fi
}

unpack() {
	if command -v xz >/dev/null; then
		xz -dc "$1" >"$2"
	else
		"${PYTHON:-python3}" -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$1" "$2"
	fi
}

# seen summarizes the output of a cell.
seen() {
	local log=$1
	case $part in
	verify | churn)
		awk '/^Total:/ { gsub(/[|]/, ""); passed += $4; wrong += $6 }
			END { printf "%d cases passed, %d failed", passed, wrong }' "$log"
		;;
	contract)
		awk '/^ *--- PASS/ { passed++ } /^ *--- FAIL/ { failed++ } /^ *--- SKIP/ { skipped++ }
			END { printf "%d passed, %d failed, %d skipped", passed, failed, skipped }' "$log"
		;;
	graphs) grep -m1 ' checked calls, ' "$log" | cut -d, -f2-5 | sed 's/^ //' || echo "no report" ;;
	torch)
		awk '/^PASS/ { passed++ } /^FAIL/ { failed++ }
			END { printf "%d passed, %d failed", passed, failed }' "$log"
		;;
	esac
}

# row runs a cell and prints its row.
row() {
	local version=$1 ranks=$2 part=$3 nccl code=0 begin=$SECONDS log verdict
	log=$out/$version-$ranks-$part.txt
	nccl=$(unpacked "$version")
	if [[ -z $nccl ]]; then
		echo "| $version | $ranks | $part | SKIPPED | 0 | not supported here: $NCCL_DIR has no NCCL $version |"
		return
	fi
	CELL=$part RANKS=$ranks NCCL=$nccl LIMIT=$limit timeout --kill-after=30 $((limit + 30)) \
		"$here/matrix.sh" >"$log" 2>&1 || code=$?
	case $code in
	0) verdict=pass ;;
	124 | 137)
		verdict="**no end**"
		failures=$((failures + 1))
		;;
	*)
		verdict="**FAILED** ($code)"
		failures=$((failures + 1))
		;;
	esac
	echo "| $version | $ranks | $part | $verdict | $((SECONDS - begin)) | $(seen "$log") |"
}

if [[ -n ${CELL:-} ]]; then
	cell
	exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${OUT:-$work}
mkdir -p "$out"
: "${NCCL_DIR:?names a folder with versions of NCCL}"
build=${BUILD:-$here/../../build/gpu}
gpus=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c |
	sed 's/^ *//' | paste -sd ';') || gpus=
printf '%s UTC, commit %s, GPUs: %s; at most %s s a cell.\n\n' "$(date -u '+%F %T')" \
	"$(cat "$build/COMMIT")" "${gpus:-no nvidia-smi}" "$limit"
echo '| NCCL | ranks | part | result | s | seen |'
echo '|---|---|---|---|---|---|'
failures=0
for version in ${VERSIONS:-2.30.7 2.31.2 2.32.3}; do
	for ranks in ${RANKS_LIST:-2 4 8}; do
		for part in $chosen; do
			row "$version" "$ranks" "$part"
		done
	done
done
((failures == 0)) || exit 1
