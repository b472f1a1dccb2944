#!/usr/bin/env bash
# Builds the backend of torch.distributed into the Python package, for the PyTorch of each Python that
# is named: backend.sh PYTHON... Without an argument it is the PyTorch of $PYTHON. What was built from
# the same sources, headers and compiler is kept.
set -euo pipefail
cd "$(dirname "$0")/../.."
sources=python/backend
output=python/src/symmem/_backend
cxx=${CXX:-g++}
[ $# -gt 0 ] || set -- "${PYTHON:-python3}"

for python in "$@"; do
	read -r version standard root < <("$python" - <<-'EOF'
		import os, torch
		major, minor = (int(n) for n in torch.__version__.split(".")[:2])
		standard = 20 if (major, minor) >= (2, 14) else 17
		print(f"{major}.{minor}", standard, os.path.dirname(torch.__file__))
	EOF
	)
	library=$output/libsymmem_torch_$version.so
	state=$(cat "$sources"/* cmd/libsymmem/symmem.h python/scripts/backend.sh "$root/version.py" |
		cat - <("$cxx" --version) | sha256sum)
	if [ -e "$library" ] && [ "$(cat "$library.state" 2>/dev/null)" = "$state" ]; then
		continue
	fi
	# One translation unit: most of the time is that of PyTorch's headers.
	printf '#include "%s"\n' "$PWD/$sources"/*.cpp |
		"$cxx" -x c++ - -std=c++"$standard" -O2 -fPIC -shared -fvisibility=hidden -w \
			-I"$sources" -Icmd/libsymmem -isystem "$root/include" \
			-isystem "$root/include/torch/csrc/api/include" \
			-L"$root/lib" -lc10 -ltorch_cpu -Wl,--as-needed -Wl,-s -o "$library.new"
	mv "$library.new" "$library"
	echo "$state" >"$library.state"
done
