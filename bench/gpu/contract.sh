#!/usr/bin/env bash
# Runs the tests of the GPU backend and of its parts. They include the contract suite, which the
# host backend also passes.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

expect 0 "${SECONDS_MAX:-900}" "$BUILD/nccl.test" -test.v -test.timeout "${SECONDS_MAX:-900}s"
for part in direct gpu memory p2p stream; do
	expect 0 60 "$BUILD/$part.test" -test.v -test.timeout 60s
done
finish
