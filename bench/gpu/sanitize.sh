#!/usr/bin/env bash
# Runs symmem's kernels under NVIDIA's sanitizer: each kernel that groups of 2 to RANKS ranks use
# (TestEveryKernelOnce logs them; only after_all, which is empty, is missing), norms, messages, and
# a random sample of all calls. NCCL's kernels run between them.
#
#   memcheck   accesses outside allocations, and misaligned ones
#   racecheck  hazards in shared memory, which only norm_short, norm_long and rms_local use. It does
#              not see races in the memory of GPUs or between GPUs; the 100,000 calls of direct.sh
#              look for those
#   synccheck  barriers that some threads of a block or warp do not reach
#
# Success means 0 errors and, for racecheck, 0 hazards, according to the tool's exit code and
# summary. Kernels that wait for each other must run at the same time under the tool, too. If they
# do not, the test ends after a minute and reports the missing ranks.
#
#   SANITIZER   the tool (that of sanitizer-build.sh in BUILD, else that of the CUDA toolkit)
#   TOOLS       checks to run (memcheck racecheck synccheck)
#   LIMIT       time limit for each, in seconds (480)
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
	# Results that symmem expects, such as "not ready", are not errors.
	expect_text 0 "${clean[$tool]}" "$limit" "$sanitizer" --tool "$tool" --error-exitcode 9 \
		--report-api-errors no --print-limit 20 \
		"$BUILD/nccl.test" -test.v -test.timeout "${limit}s" \
		-test.run '^TestEveryKernelOnce$|^TestNorms|^TestMessagesOfAny|^TestDirectIsRight$'
done
finish
