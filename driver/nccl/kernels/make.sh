#!/usr/bin/env bash
# Makes the objects of the kernels from their sources: cubins for the architectures that object.go
# lists, and PTX for compute_90, which the driver of any later GPU compiles. NVRTC comes from PyPI. A
# GPU's objects are made by the first version that most of its drivers understand. No GPU and no CUDA
# toolkit are needed. With --check nothing is written: the exit code says whether the objects are
# those of the sources.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
objects=objects
[[ ${1:-} == --check ]] && objects=$work/objects
mkdir -p "$objects"
python3 -m venv "$work/venv"
versions=(12.2.140 12.8.93)
declare -A architectures=([12.2.140]='sm_80 sm_90 compute_90' [12.8.93]='sm_100 sm_120')
compiling=()
for version in "${versions[@]}"; do
	"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
		--target "$work/$version" "nvidia-cuda-nvrtc-cu12==$version"
	nvrtc=$work/$version/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
	for source in src/*.cu; do
		name=$(basename "$source" .cu)
		for architecture in ${architectures[$version]}; do
			LD_LIBRARY_PATH=${nvrtc%/*} "$work/venv/bin/python" compile.py "$nvrtc" "$source" \
				"$architecture" "$objects/$name.$architecture.gz" &
			compiling+=($!)
		done
	done
done
for one in "${compiling[@]}"; do
	wait "$one"
done
{
	echo "NVRTC ${versions[*]}"
	(cd src && sha256sum -- *) 
	(cd "$objects" && sha256sum -- *.gz)
} >"$objects/MANIFEST"
[[ ${1:-} != --check ]] || diff -r objects "$objects"
