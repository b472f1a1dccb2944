#!/usr/bin/env bash
# Kernels of our own under NVIDIA's sanitizer: each that groups of 2 to RANKS ranks have
# (TestEveryKernelOnce logs which have run; only after_all, which is empty, is not among them), norms,
# messages, and a random sample of all calls. NCCL's kernels run between them.
#
#   memcheck   accesses outside of allocations, or not aligned
#   racecheck  hazards in shared memory, which only norm_short, norm_long and rms_local have: of other
#              kernels it says nothing. Races in the memory of GPUs and between them it does not see;
#              the 100,000 calls of direct.sh look for those
#   synccheck  barriers that not all threads of a block or warp reach
#
# Clean is 0 errors and, for racecheck, 0 hazards: the tool's exit code and its summary say so. Kernels
# that wait for each other must run at once under the tool, too; if they do not, the test ends after a
# minute and says who is missing.
#
#   SANITIZER   the tool (what sanitizer-build.sh has put into BUILD, else the CUDA toolkit's)
#   TOOLS       what to look for (memcheck racecheck synccheck)
#   LIMIT       seconds for each (480)
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

sanitizer=${SANITIZER:-$BUILD/sanitizer/compute-sanitizer}
if [[ ! -x $sanitizer && -z ${SANITIZER:-} ]]; then
	sanitizer=/usr/local/cuda/bin/compute-sanitizer
fi
limit=${LIMIT:-480}
if [[ ! -x $sanitizer ]]; then
	fail "there is no $sanitizer: run sanitizer-build.sh, or set SANITIZER"
	finish
fi
"$sanitizer" --version | sed 's/^/# /'

declare -A clean=(
	[memcheck]='^========= ERROR SUMMARY: 0 errors'
	[racecheck]='^========= RACECHECK SUMMARY: 0 hazards displayed \(0 errors, 0 warnings\)'
	[synccheck]='^========= ERROR SUMMARY: 0 errors'
)
for tool in ${TOOLS:-memcheck racecheck synccheck}; do
	# Results that our code asks for and expects, such as "not ready", are no errors.
	expect_text 0 "${clean[$tool]}" "$limit" "$sanitizer" --tool "$tool" --error-exitcode 9 \
		--report-api-errors no --print-limit 20 \
		"$BUILD/nccl.test" -test.v -test.timeout "${limit}s" \
		-test.run '^TestEveryKernelOnce$|^TestNorms|^TestMessagesOfAny|^TestDirectIsRight$'
done
finish
