#!/usr/bin/env bash
# Builds what torch.sh runs, into build/gpu: the Python package with its library. Build where there
# are Go and gcc, carry build/gpu, and run where there is PyTorch.
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
