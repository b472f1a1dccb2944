#!/usr/bin/env bash
# Checks that every rank reports a fault by name and in time, and that the GPUs work afterwards. The
# faults are those of the contract suite, a rank killed during its work, and ranks that diverge.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

expect 0 600 "$BUILD/nccl.test" -test.v -test.timeout 600s \
	-test.run 'TestContract/(faults|mistakes|closing|windows|capture)'

# Rank 1 is killed after a while. The others name it and end by themselves.
# shellcheck disable=SC2016 # the ranks' shells expand it
victim='
if [ "$RANK" = 1 ]; then
	symmem verify --backend "$0" --for 120s &
	sleep "$1"
	kill -9 $!
	wait
	sleep 30
	exit 3
fi
exec symmem verify --backend "$0" --for 120s'
begin=$SECONDS
expect_text 2 'rank 1' 110 symmem launch -n "$RANKS" -- bash -c "$victim" "$BACKEND" "${KILL_AFTER:-20}"
echo "# the ranks ended after $((SECONDS - begin)) s, with rank 1 killed after ${KILL_AFTER:-20} s"

expect_text 1 'divergence: ' 120 symmem verify --backend "$BACKEND" --ranks "$RANKS" --churn 400 \
	--skew --placement address --check every
expect 0 120 symmem verify --backend "$BACKEND" --ranks "$RANKS"
finish
