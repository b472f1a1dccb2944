#!/usr/bin/env bash
# Runs the tests of packages many times on a busy machine, to find those that fail seldom.
#
#   scripts/stress.sh [-n RUNS] [-l LOAD] [-r] [PACKAGE...]
#
#   -n RUNS   runs of each package (50)
#   -l LOAD   busy processes for each processor meanwhile (3; 0 for none)
#   -r        with the race detector
#   PACKAGE   packages to test; the default is those whose tests have deadlines
#
# Passed runs are counted in build/stress, by commit and package. A second call continues where an
# interrupted one ended. The output of a run that fails stays there, too. Ends with status 1 if a run
# has failed, now or before.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^set /{s/^# \{0,1\}//p}' "$0"; }

runs=50 load=3 race=()
while getopts n:l:rh option; do
	case $option in
	n) runs=$OPTARG ;;
	l) load=$OPTARG ;;
	r) race=(-race) ;;
	h) usage && exit ;;
	*) usage >&2 && exit 2 ;;
	esac
done
shift $((OPTIND - 1))
if [ $# -eq 0 ]; then
	set -- . ./driver/host ./driver/nccl ./internal/chaos ./internal/control/... \
		./internal/handoff ./internal/launch ./internal/rendezvous ./cmd/symmem
fi

commit=$(git rev-parse --short HEAD)
[ -z "$(git status --porcelain)" ] || commit+="-changed"
at=build/stress/$commit${race[*]}
mkdir -p "$at"

busy=()
trap 'kill "${busy[@]}" 2>/dev/null || true' EXIT
for ((i = 0; i < load * $(nproc); i++)); do
	(while :; do :; done) &
	busy+=($!)
done

# test_package runs the tests of one package until they have passed often enough.
test_package() {
	local package=$1 name=${1#*/} folder passed failed
	name=${name//\//_}
	folder=$(go list -f '{{.Dir}}' "$package")
	passed=$(cat "$at/$name.passed" 2>/dev/null || echo 0)
	failed=$(find "$at" -name "$name.failed.*" | wc -l)
	if ((passed + failed < runs)); then
		go test -c "${race[@]}" -o "$at/$name.test" "$package"
	fi
	[ -e "$at/$name.test" ] || return 0 # it has no tests
	while ((passed + failed < runs)); do
		if (cd "$folder" && timeout --signal=QUIT 1800 "$OLDPWD/$at/$name.test" \
			-test.timeout=25m) >"$at/$name.out" 2>&1; then
			passed=$((passed + 1))
			echo "$passed" >"$at/$name.passed"
		else
			failed=$((failed + 1))
			mv "$at/$name.out" "$at/$name.failed.$failed"
			grep -hE '^(panic|\s*--- FAIL)' "$at/$name.failed.$failed" || true
		fi
		printf '%s: %d passed, %d failed, of %d\n' "$package" "$passed" "$failed" "$runs"
	done
}

for package in $(go list "$@"); do
	test_package "$package"
done

if compgen -G "$at/*.failed.*" >/dev/null; then
	ls "$at"/*.failed.*
	exit 1
fi
echo "no run failed: $(awk "{n += \$1} END {print n}" "$at"/*.passed) passed"
