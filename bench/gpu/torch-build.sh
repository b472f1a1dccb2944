#!/usr/bin/env bash
# Builds into build/gpu what torch.sh runs: the Python package with its library and, for the PyTorch
# of $PYTHON, the backend of torch.distributed. Without it, the parts backend and symmetric fail.
# Build on a machine with Go, g++ and the PyTorch of the GPU machine, and copy build/gpu there.
set -euo pipefail
cd "$(dirname "$0")/../.."
python/scripts/library.sh
if "${PYTHON:-python3}" -c 'import torch' 2>/dev/null; then
	python/scripts/backend.sh
else
	echo "${PYTHON:-python3} has no PyTorch: the backend of torch.distributed is left out" >&2
fi
out=build/gpu
rm -rf "$out/python"
mkdir -p "$out/python"
cp -r python/src/symmem "$out/python/"
find "$out/python" -name __pycache__ -prune -exec rm -rf {} +
changed=
[[ -z $(git status --porcelain) ]] || changed=', with changes'
echo "$(git rev-parse HEAD)$changed" >"$out/COMMIT"
cat "$out/COMMIT"
du -sh "$out/python"
