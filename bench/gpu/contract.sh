#!/usr/bin/env bash
# The tests of the GPU backend, which hold the contract suite that the host backend passes, too, and
# those of its parts.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

expect 0 "${SECONDS_MAX:-900}" "$BUILD/nccl.test" -test.v -test.timeout "${SECONDS_MAX:-900}s"
for part in direct gpu memory p2p stream; do
	expect 0 60 "$BUILD/$part.test" -test.v -test.timeout 60s
done
finish
