#!/usr/bin/env bash
# Downloads NVIDIA's sanitizer from PyPI into build/gpu, where sanitize.sh finds it on a machine
# without a CUDA toolkit. VERSION is the version of the wheel (13.5.25), which the driver of that
# machine must support.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/gpu/sanitizer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" \
	"nvidia-cuda-sanitizer-api==${VERSION:-13.5.25}"
python3 -m zipfile -e "$work"/*.whl "$work"
rm -rf "$out"
mkdir -p "$out"
cd "$work/nvidia/cu13"
# Older wheels have the tool in bin and its libraries in lib. The tool looks for them in its own
# folder.
for from in compute-sanitizer/* lib/*.so bin/compute-sanitizer; do
	if [[ -f $from && ! -e $OLDPWD/$out/${from##*/} ]]; then cp "$from" "$OLDPWD/$out"; fi
done
cd "$OLDPWD"
chmod -R +x "$out"
du -sh "$out"
