#!/usr/bin/env bash
# Runs all scripts of this folder, one after the other, and tells at the end which have failed.
# SCRIPTS names those to run; OUT is a folder for their output, which is printed, too. All of them
# take hours; sanitize the tool that sanitizer-build.sh carries, torch PyTorch (torch-build.sh),
# fabric root. engines is run by its name, since it needs files of PyPI (engines-build.sh).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
all="contract verify faults submit windows paths plain direct norm machines fabric kill torch sanitize soak"
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
