#!/usr/bin/env bash
# Kernels of our own under NVIDIA's sanitizer: each that groups of so many ranks have, norms, and
# a random sample of all calls. The first test logs which kernels ran. memcheck looks for accesses outside
# of memory and out of line. racecheck looks at shared memory alone, which only norm_short, norm_long
# and rms_local have: of all other kernels it says nothing. Races in the memory of GPUs and
# between them it does not see; those are what the 100,000 calls of direct.sh are for. Clean is
#
#   ========= ERROR SUMMARY: 0 errors
#   ========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
#
# and nothing else on lines that begin so, but for the first. Kernels that wait for each other must run
# at once under the tool, too; if they do not, the test ends after a minute and says who is missing.
#
#   SANITIZER   the tool (/usr/local/cuda/bin/compute-sanitizer)
#   TOOLS       what to look for (memcheck racecheck)
#   LIMIT       seconds for each (480)
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

sanitizer=${SANITIZER:-/usr/local/cuda/bin/compute-sanitizer}
limit=${LIMIT:-480}
if [[ ! -x $sanitizer ]]; then
	fail "there is no $sanitizer: SANITIZER names another"
	finish
fi
"$sanitizer" --version | sed 's/^/# /'

declare -A clean=(
	[memcheck]='^========= ERROR SUMMARY: 0 errors'
	[racecheck]='^========= RACECHECK SUMMARY: 0 hazards displayed \(0 errors, 0 warnings\)'
	[synccheck]='^========= ERROR SUMMARY: 0 errors'
)
for tool in ${TOOLS:-memcheck racecheck}; do
	# Results that our code asks for and expects, such as "not ready", are no errors.
	expect_text 0 "${clean[$tool]}" "$limit" "$sanitizer" --tool "$tool" --error-exitcode 9 \
		--report-api-errors no --print-limit 20 \
		"$BUILD/nccl.test" -test.v -test.timeout "${limit}s" \
		-test.run '^TestEveryKernelOnce$|^TestNorms|^TestDirectIsRight$'
done
finish
