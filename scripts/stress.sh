#!/usr/bin/env bash
# Runs the tests of packages many times on a busy machine, to find tests that seldom fail.
#
#   scripts/stress.sh [-n RUNS] [-l LOAD] [-j JOBS] [-r] [-s] [PACKAGE...]
#
#   -n RUNS   runs of each package (50)
#   -l LOAD   busy processes per processor during the runs (3; 0 for none)
#   -j JOBS   runs at the same time (1). Many jobs are a load themselves: use -l 0 with them
#   -r        with the race detector
#   -s        only short tests
#   PACKAGE   packages to test; the default is those whose tests have deadlines
#
# build/stress records each run, by commit. A second call continues an interrupted one. The output
# of a failed run stays there. The exit status is 1 if any run has failed, now or before.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^set /{s/^# \{0,1\}//p}' "$0"; }

runs=50 load=3 jobs=1 race=() short=
while getopts n:l:j:rsh option; do
	case $option in
	n) runs=$OPTARG ;;
	l) load=$OPTARG ;;
	j) jobs=$OPTARG ;;
	r) race=(-race) ;;
	s) short=-test.short ;;
	h) usage && exit ;;
	*) usage >&2 && exit 2 ;;
	esac
done
shift $((OPTIND - 1))
if [ $# -eq 0 ]; then
	set -- . ./driver/host ./driver/nccl ./internal/chaos ./internal/control/... \
		./internal/handoff ./internal/launch ./internal/rendezvous ./cmd/symmem
fi

commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain 2>/dev/null)" ] || commit+="-changed"
at=$PWD/build/stress/$commit${race[*]}${short#-test}
mkdir -p "$at"

# run_once FOLDER NAME N runs the tests of one package once.
run_once() {
	local result=$at/$2.$3
	if (cd "$1" && timeout --signal=QUIT 1800 "$at/$2.test" -test.timeout=25m $short) \
		>"$result.out" 2>&1; then
		rm "$result.out"
		touch "$result.passed"
	else
		mv "$result.out" "$result.failed"
		grep -HE '^(panic|\s*--- FAIL)' "$result.failed" || echo "$result.failed"
	fi
}
export -f run_once
export at short

# pending prints a line for each run that has no result yet.
pending() {
	local folder name n
	for ((n = 1; n <= runs; n++)); do
		while read -r folder name; do
			if [ -e "$at/$name.test" ] && ! compgen -G "$at/$name.$n.*ed" >/dev/null; then
				echo "$folder $name $n"
			fi
		done <"$at/packages"
	done
}

# report prints the numbers of passed and failed runs of each package.
report() {
	local folder name
	while read -r folder name; do
		[ -e "$at/$name.test" ] || continue
		printf '%s: %d passed, %d failed, of %d\n' "$name" \
			"$(find "$at" -name "$name.*.passed" | wc -l)" \
			"$(find "$at" -name "$name.*.failed" | wc -l)" "$runs"
	done <"$at/packages"
}

busy=()
trap 'kill "${busy[@]}" 2>/dev/null || true; report' EXIT

go list -f '{{.Dir}} {{.ImportPath}}' "$@" | while read -r folder path; do
	name=${path#symmem/}
	name=${name//\//_}
	echo "$folder $name"
	[ -e "$at/$name.test" ] || go test -c "${race[@]}" -o "$at/$name.test" "$folder" >/dev/null
done >"$at/packages"

for ((i = 0; i < load * $(nproc); i++)); do
	(while :; do :; done) &
	busy+=($!)
done
pending | xargs -r -P "$jobs" -L 1 bash -c 'run_once "$@"' run_once

! compgen -G "$at/*.failed" >/dev/null
