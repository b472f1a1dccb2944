#!/usr/bin/env bash
# Builds into build/gpu what torch.sh runs: the Python package with its library. Build on a machine
# with Go and gcc, and copy build/gpu to one with PyTorch.
set -euo pipefail
cd "$(dirname "$0")/../.."
python/scripts/library.sh
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
