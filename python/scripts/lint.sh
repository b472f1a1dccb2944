#!/usr/bin/env bash
# ruff over the package, its tests, the GPU scripts and the examples; mypy --strict over the package
# and its build hook, as pyproject.toml configures them. Tools that are not installed are left out,
# with a message.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
failed=0
check() {
	local name=$1
	shift
	if ! "$python" -c "import $name" 2>/dev/null && ! command -v "$name" >/dev/null; then
		echo "$name is not installed: left out" >&2
		return
	fi
	"$python" -m "$name" "$@" || failed=1
}
sources=(python bench/gpu/torch bench/host/{agree,backend}.py examples)
check ruff check "${sources[@]}"
check ruff format --check "${sources[@]}"
check mypy
exit "$failed"
