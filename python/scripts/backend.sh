#!/usr/bin/env bash
# Builds the backend of torch.distributed into the Python package, for the PyTorch of each given
# Python: backend.sh PYTHON... The default is $PYTHON. A library that the same compiler has built
# from the same files is copied from the user's cache.
set -euo pipefail
cd "$(dirname "$0")/../.."
sources=python/backend
output=python/src/symmem/_backend
cache=${XDG_CACHE_HOME:-$HOME/.cache}/symmem-torch
cxx=${CXX:-g++}
[ $# -gt 0 ] || set -- "${PYTHON:-python3}"

# build LIBRARY STANDARD ROOT compiles all sources as one file, because most of the time is spent on
# PyTorch's headers.
build() {
	printf '#include "%s"\n' "$PWD/$sources"/*.cpp |
		"$cxx" -x c++ - -std="c++$2" -O1 -fPIC -shared -fvisibility=hidden -w \
			-include cmd/libsymmem/glibc.h "-ffile-prefix-map=$PWD/=" -I"$sources" \
			-Icmd/libsymmem -isystem "$3/include" -isystem "$3/include/torch/csrc/api/include" \
			-L"$3/lib" -lc10 -ltorch_cpu -Wl,--as-needed -Wl,-s -o "$1.$$"
	mv "$1.$$" "$1"
}

mkdir -p "$cache"
for python in "$@"; do
	read -r version standard root < <("$python" - <<-'EOF'
		import os, torch
		major, minor = (int(n) for n in torch.__version__.split(".")[:2])
		standard = 20 if (major, minor) >= (2, 14) else 17
		print(f"{major}.{minor}", standard, os.path.dirname(torch.__file__))
	EOF
	)
	key=$(cat "$sources"/* cmd/libsymmem/{glibc,symmem}.h python/scripts/backend.sh \
		"$root/version.py" | cat - <("$cxx" --version) | sha256sum | cut -c1-32)
	[ -e "$cache/$key.so" ] || build "$cache/$key.so" "$standard" "$root"
	library=$output/libsymmem_torch_$version.so
	if ! cmp -s "$cache/$key.so" "$library"; then
		cp "$cache/$key.so" "$library.$$"
		mv "$library.$$" "$library"
	fi
done
