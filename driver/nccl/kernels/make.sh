#!/usr/bin/env bash
# Makes the objects of the kernels from their sources: PTX for compute_80, which any later GPU's driver
# compiles for itself, and cubins for the GPUs that most have. NVRTC comes from PyPI, in a version that
# drivers from 535 on understand; no GPU and no CUDA toolkit are needed. With --check nothing is
# written: the exit code says whether the objects are those of the sources.
set -euo pipefail
cd "$(dirname "$0")"
version=12.2.140
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
objects=objects
[[ ${1:-} == --check ]] && objects=$work/objects
mkdir -p "$objects"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
	"nvidia-cuda-nvrtc-cu12==$version"
nvrtc=$(echo "$work"/venv/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12)
export LD_LIBRARY_PATH=${nvrtc%/*}
compiling=()
for source in src/*.cu; do
	name=$(basename "$source" .cu)
	for architecture in compute_80 sm_80 sm_90; do
		"$work/venv/bin/python" compile.py "$nvrtc" "$source" "$architecture" "$objects/$name.$architecture.gz" &
		compiling+=($!)
	done
done
for one in "${compiling[@]}"; do
	wait "$one"
done
{
	echo "NVRTC $version"
	(cd src && sha256sum -- *) 
	(cd "$objects" && sha256sum -- *.gz)
} >"$objects/MANIFEST"
[[ ${1:-} != --check ]] || diff -r objects "$objects"
