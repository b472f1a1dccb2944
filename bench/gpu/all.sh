#!/usr/bin/env bash
# Runs the scripts of this folder one after the other and lists those that failed. SCRIPTS names the
# scripts to run. OUT is a folder for their output, which is also printed. All of them together take
# hours. sanitize needs the tool of sanitizer-build.sh, torch and device need PyTorch
# (torch-build.sh), and fabric needs root. engines runs only if SCRIPTS names it, because it needs
# files from PyPI (engines-build.sh).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
all="contract verify faults submit live preflight windows paths plain direct norm machines fabric"
all+=" kill suspend torch device sanitize soak"
read -ra scripts <<<"${SCRIPTS:-$all}"
out=${OUT:-}
failed=()
for script in "${scripts[@]}"; do
	code=0
	if [[ -n $out ]]; then
		mkdir -p "$out"
		"$here/$script.sh" 2>&1 | tee "$out/$script.txt" || code=$?
	else
		"$here/$script.sh" 2>&1 || code=$?
	fi
	((code == 0)) || failed+=("$script")
	echo
done
if ((${#failed[@]})); then
	echo "# FAILED: ${failed[*]}"
	exit 1
fi
echo "# all scripts are well: ${scripts[*]}"
