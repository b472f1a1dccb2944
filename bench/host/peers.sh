#!/bin/bash
# peers.sh measures symmem on one machine side by side with Open MPI, MPICH and gloo, and with
# limit.c, which has nothing around its loops. They run in turns. The round trip between two
# processors is measured before and after every launch, and stored with it. A launch waits until the
# machine is quiet, and is repeated if other work ran meanwhile.
#
#   peers.sh install          Debian packages of the peers (needs root)
#   peers.sh build            symmem, the drivers and the tools, into $BIN
#   peers.sh run              appends $REPS repetitions to $OUT/rows.csv
#   peers.sh table            writes $OUT/table.md and result files for docs/measurements from
#                             $OUT/rows.csv
#   peers.sh all              build, run, table
#
# A peer that is missing or cannot do something adds a remark "# peer: reason" to the rows. The
# reason is not-installed, index-unreachable, not-supported, failed or timed-out.
#
# Any other name x in $PEERS stands for your program $BIN/peer-x. It is called like limit, with
# RANKS LABEL OPS SIZES BATCHES BATCH_MS, and prints rows of the same form.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

BIN=${BIN:-$root/bin/bench-host}
OUT=${OUT:-$root/bin/bench-host-results}
REPS=${REPS:-4}
RANKS=${RANKS:-2 4}
OPS=${OPS:-all_reduce,all_gather,reduce_scatter}
SIZES=${SIZES:-8,1024,65536,1048576,16777216,67108864}
BATCHES=${BATCHES:-9}
BATCH_MS=${BATCH_MS:-4}
PEERS=${PEERS:-symmem limit ompi ompi-nocma ompi-tuned ompi-sm mpich gloo}
LIMIT_S=${LIMIT_S:-60} # the longest that one launch may take
QUIET_S=${QUIET_S:-120} # how long one waits for a quiet machine
OTHERS=${OTHERS:-3}     # percent of the processors that other work may take
TRIES=${TRIES:-4}       # launches until one counts although there was more

install() {
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q &&
		apt-get install -q -y --no-install-recommends \
			gcc libc6-dev openmpi-bin libopenmpi-dev mpich libmpich-dev || return 1
	# The Debian package includes gloo and is a tenth of the size of the wheel.
	apt-get install -q -y --no-install-recommends python3-torch ||
		python3 -m pip install -q torch ||
		echo "# gloo: index-unreachable"
}

build() {
	mkdir -p "$BIN" || return 1
	(cd "$root" && go build -o "$BIN/symmem" ./cmd/symmem &&
		go build -o "$BIN/aggregate" ./bench/host/aggregate) || return 1
	gcc -O2 -o "$BIN/rtt" "$here/rtt.c" || return 1
	gcc -O3 -march=native -o "$BIN/limit" "$here/limit.c" || echo "limit: failed" >&2
	for mpi in openmpi mpich; do
		if command -v "mpicc.$mpi" >/dev/null; then
			"mpicc.$mpi" -O3 -march=native -o "$BIN/mpibench.$mpi" "$here/mpibench.c" || return 1
		fi
	done
}

# torch_python prints the path of a Python with torch.
torch_python() {
	for python in /usr/bin/python3 python3; do
		if "$python" -c 'import torch.distributed' 2>/dev/null; then
			echo "$python"
			return
		fi
	done
	return 1
}

ompi() { # ranks, label, flags of mpirun
	local ranks=$1 label=$2 idle=()
	shift 2
	# If there are more ranks than processors, ranks must yield to each other.
	[ "$ranks" -gt "$(nproc)" ] && idle=(--oversubscribe --mca mpi_yield_when_idle 1)
	OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
		mpirun.openmpi --bind-to none -np "$ranks" "${idle[@]}" "$@" \
		"$BIN/mpibench.openmpi" "$label" "$OPS" "$SIZES" "$BATCHES" "$BATCH_MS"
}

# launch runs one peer once and prints its rows.
launch() { # peer, ranks
	local peer=$1 ranks=$2 nocma=(--mca btl_vader_single_copy_mechanism none)
	case $peer in
	symmem)
		"$BIN/symmem" bench collective --ranks "$ranks" --ops "$OPS" --sizes "$SIZES" \
			--batches "$BATCHES" --batch "${BATCH_MS}ms" --in-place=false --json |
			"$BIN/aggregate" rows symmem
		;;
	limit) "$BIN/limit" "$ranks" limit "$OPS" "$SIZES" "$BATCHES" "$BATCH_MS" ;;
	ompi) ompi "$ranks" ompi ;;
	ompi-nocma) ompi "$ranks" ompi-nocma "${nocma[@]}" ;;
	ompi-tuned)
		ompi "$ranks" ompi-tuned "${nocma[@]}" --mca coll_tuned_use_dynamic_rules 1 \
			--mca coll_tuned_allreduce_algorithm 1
		;;
	ompi-sm) ompi "$ranks" ompi-sm "${nocma[@]}" --mca coll_sm_priority 90 ;;
	mpich)
		mpirun.mpich -np "$ranks" \
			"$BIN/mpibench.mpich" mpich "$OPS" "$SIZES" "$BATCHES" "$BATCH_MS"
		;;
	gloo)
		OMP_NUM_THREADS=1 "$(torch_python)" "$here/gloobench.py" "$ranks" gloo "$OPS" "$SIZES" \
			"$BATCHES" "$BATCH_MS"
		;;
	*) "$BIN/peer-$peer" "$ranks" "$peer" "$OPS" "$SIZES" "$BATCHES" "$BATCH_MS" ;;
	esac
}

# missing prints why a peer cannot be launched.
missing() {
	case $1 in
	symmem | limit) [ -x "$BIN/$1" ] || echo not-built ;;
	ompi*) [ -x "$BIN/mpibench.openmpi" ] || echo not-installed ;;
	mpich) [ -x "$BIN/mpibench.mpich" ] || echo not-installed ;;
	gloo) torch_python >/dev/null || echo not-installed ;;
	*) [ -x "$BIN/peer-$1" ] || echo not-installed ;;
	esac
}

# ticks prints the hundredths of seconds of processor time used so far by all processes, and by this
# script and its finished children.
ticks() {
	awk 'FNR == 1 && /^cpu / { all = $2 + $3 + $4 } FNR == 1 && !/^cpu / { own = $14 + $15 + $16 + $17 }
		END { print all, own }' /proc/stat "/proc/$$/stat"
}

# others prints the percentage of the processors that other processes used since the given ticks.
others() { # ticks of anybody, own ticks, seconds
	local all own
	read -r all own < <(ticks)
	awk -v used=$((all - $1 - own + $2)) -v seconds="$3" -v n="$(nproc)" \
		'BEGIN { printf("%d\n", used / seconds / n + 0.5) }'
}

# quiet waits until no other work runs.
quiet() {
	local start until=$((SECONDS + QUIET_S))
	while [ "$SECONDS" -lt "$until" ]; do
		start=$(ticks)
		sleep 0.5
		# shellcheck disable=SC2086 # two numbers
		[ "$(others $start 0.5)" -le "$OTHERS" ] && return
	done
}

# tagged runs a launch between two round trips and appends its rows.
tagged() { # peer, ranks
	local reason try
	reason=$(missing "$1")
	if [ -n "$reason" ]; then
		echo "# $1: $reason" >>"$OUT/rows.csv"
		return
	fi
	for try in $(seq "$TRIES"); do
		quiet
		attempt "$1" "$2" "$try" && return
	done
}

# attempt makes one launch. It fails if other work ran meanwhile, unless this was the last try.
attempt() { # peer, ranks, try
	local before after rows status start begin others
	before=$("$BIN/rtt")
	start=$(ticks) begin=$EPOCHREALTIME
	rows=$(timeout "$LIMIT_S" "$here/peers.sh" launch "$1" "$2" 2>>"$OUT/errors.txt")
	status=$?
	# shellcheck disable=SC2086 # two numbers
	others=$(others $start "$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')")
	after=$("$BIN/rtt")
	echo "$1, $2 ranks: round trip $before ns before, $after ns after, $others % by others" >&2
	[ "$others" -gt "$OTHERS" ] && [ "$3" -lt "$TRIES" ] && return 1
	case $status in
	0) ;;
	124) echo "# $1, $2 ranks: timed-out" >>"$OUT/rows.csv" ;;
	*) echo "# $1, $2 ranks: failed" >>"$OUT/rows.csv" ;;
	esac
	echo "$rows" | sed -e '/^#/!{/./s/$/,'"$before,$after"'/}' -e '/^$/d' >>"$OUT/rows.csv"
}

run() {
	mkdir -p "$OUT" || return 1
	for rep in $(seq "$REPS"); do
		echo "repetition $rep of $REPS" >&2
		for ranks in $RANKS; do
			for peer in $PEERS; do
				tagged "$peer" "$ranks"
			done
		done
	done
}

table() {
	"$BIN/aggregate" table "$OUT/rows.csv" >"$OUT/table.md" && cat "$OUT/table.md" || return 1
	MACHINE="$(nproc) processors, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $(uname -sr)" \
		DATE=$(date -u -r "$OUT/rows.csv" +%F) COMMIT=$(git -C "$root" rev-parse --short HEAD) \
		COMMAND="REPS=$REPS bench/host/peers.sh all" "$BIN/aggregate" results "$OUT/rows.csv" "$OUT"
}

case ${1:-} in
install | build | run | table) "$1" ;;
launch) launch "$2" "$3" ;;
all) build && run && table ;;
*) sed -n '2,18s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
