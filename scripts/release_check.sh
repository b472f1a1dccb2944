#!/usr/bin/env bash
# Tests the files that scripts/release.sh has built, where a user would unpack or install them, and
# without the network: release_check.sh DIR MODULE VERSION. $PYTHON needs hatchling.
set -euo pipefail
[ $# -eq 3 ] || { sed -n '2,3s/^# //p' "$0" >&2 && exit 2; }
out=$(realpath "$1") module=$2 version=$3
python=$(realpath -s "$(command -v "${PYTHON:-python3}")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GOTOOLCHAIN=local PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
cd "$work"

step() { echo "   $* (${SECONDS}s)"; }

# expect STATUS WORDS COMMAND... runs a command that must end with a status and print some words.
expect() {
	local status=$1 words=$2 got=0
	shift 2
	timeout --verbose --kill-after=30 120 "$@" >"$work/out" 2>&1 || got=$?
	if [ "$got" -ne "$status" ] || ! grep -qE -- "$words" "$work/out"; then
		cat "$work/out"
		echo "$*: status $got, want $status and \"$words\"" >&2
		return 1
	fi
}

# check_version COMMAND tests the version that a command prints.
check_version() {
	local line="^symmem v${version//./\\.} \([0-9a-f]{12}(, modified)?\), go1\."
	expect 0 "$line" "$1" version
	expect 0 "$line" "$1" --version
}

check_sums() {
	step "checksums"
	(cd "$out" && sha256sum --quiet -c SHA256SUMS)
	[ "$(wc -l <"$out/SHA256SUMS")" -eq "$(($(find "$out" -type f | wc -l) - 1))" ]
}

# check_module uses the module as an empty one would: from a proxy, with a module cache of its own.
check_module() {
	step "go get $module, go install $module/cmd/symmem@v$version"
	local cached folder
	cached=$(go env GOMODCACHE)/cache/download
	export GOMODCACHE=$work/modules GOBIN=$work/bin GOSUMDB=off GOWORK=off
	export GOPROXY=file://$out/goproxy,file://$cached GOFLAGS="-trimpath -modcacherw"
	mkdir mine
	cd mine
	go mod init example.org/mine 2>/dev/null
	go get "$module" 2>"$work/log" || { cat "$work/log" && return 1; }
	folder=$(go list -m -f '{{.Dir}}' "$module")
	cp "$folder/examples/allreduce/main.go" .
	go build -o mine .
	CGO_ENABLED=0 go install "$module/cmd/symmem@v$version" 2>"$work/log" ||
		{ cat "$work/log" && return 1; }
	check_version "$GOBIN/symmem"
	expect 0 "sum 3" "$GOBIN/symmem" launch -n 2 -- ./mine

	# The names of the packages are not only in imports: a caller is found by them.
	local bug=(--backend host --placement address --skew --churn 200 --seed 1 --check every)
	expect 1 'at .*internal/verify/[a-z_]+\.go:' "$GOBIN/symmem" verify "${bug[@]}" --callsites
	cd "$folder"
	go list -test -deps ./... >"$work/log" 2>&1 || { cat "$work/log" && return 1; }
	cd "$work"
}

check_command() {
	step "command, manual pages, completions"
	local name=symmem-$version-linux-amd64 page
	tar -xzf "$out/$name.tar.gz"
	check_version "$name/bin/symmem"
	expect 0 "Passed: 16 \\| Failed: 0" "$name/bin/symmem" verify --backend host
	for page in "$name"/share/man/man1/*.1; do
		check_page "$page"
	done
	[ -e "$name/share/man/man1/symmem-verify.1" ]
	local completions=$name/share/bash-completion/completions/symmem
	# shellcheck disable=SC2016 # the words of the inner shell
	expect 0 "_symmem symmem" bash -euc 'source "$1" && complete -p symmem' bash "$completions"
	! command -v zsh >/dev/null || zsh -n "$name/share/zsh/site-functions/_symmem"
	! command -v fish >/dev/null || fish -n "$name/share/fish/vendor_completions.d/symmem.fish"
}

# check_page PAGE renders a manual page, where something can, and looks for its sections.
check_page() {
	local section
	if command -v groff >/dev/null; then
		groff -man -Tascii -P-cbou -ww "$1" >page 2>warnings
		sed -i '/cannot adjust line/d' warnings
		[ ! -s warnings ] || { cat warnings && return 1; }
	else
		cp "$1" page
	fi
	for section in NAME SYNOPSIS OPTIONS; do
		grep -q "$section" page || { echo "$1 has no section $section" && return 1; }
	done
}

check_cross_compiled() {
	step "command for arm64, which is not run"
	local name=symmem-$version-linux-arm64-not-run
	tar -xzf "$out/$name.tar.gz"
	expect 0 "Machine: +AArch64" readelf -h "$name/bin/symmem"
}

check_library() {
	step "C: pkg-config, gcc"
	tar -xzf "$out/libsymmem-$version-linux-amd64.tar.gz"
	mv "libsymmem-$version-linux-amd64" "a folder" # which was not known at the build
	cat >program.c <<-'END'
		#include <stdio.h>
		#include <string.h>
		#include <symmem.h>

		int main(void) {
			const char *options = "{\"backend\": \"host\", \"rank\": 0, \"size\": 1}";
			char text[512];
			int code = symmem_open(strlen(options), options);
			if (code != SYMMEM_OK) {
				symmem_last_error(sizeof text, text, NULL);
				fprintf(stderr, "%s\n", text);
				return 1;
			}
			printf("%s %d\n", SYMMEM_VERSION, symmem_abi_version() == SYMMEM_ABI_VERSION);
			return symmem_close(0);
		}
	END
	local library="$work/a folder/lib" flags
	export PKG_CONFIG_PATH=$library/pkgconfig
	[ "$(pkg-config --modversion symmem)" = "$version" ]
	flags=$(pkg-config --cflags --libs symmem)
	eval "gcc -Wall -Werror -o program program.c $flags"
	expect 0 "^$version 1\$" env LD_LIBRARY_PATH="$library" ./program
}

# check_python builds the wheel again from the source distribution, and installs it in an empty
# environment.
check_python() {
	step "pip install: source distribution, wheel"
	local wheel one
	wheel=$(ls "$out"/symmem-*.whl)
	"$python" -m pip wheel -q --no-deps --no-build-isolation -w built "${wheel%-py3-*}.tar.gz"
	cmp "$wheel" built/*.whl
	"$python" -m zipfile -l "$wheel" >members
	for one in symmem/libsymmem.so symmem/py.typed LICENSE-dependencies; do
		grep -q "$one" members
	done
	if grep -E '\.(h|pyc|go) ' members; then return 1; fi
	[[ $wheel == *-manylinux_2_28_x86_64.whl ]] || { echo "$wheel: want manylinux_2_28" && return 1; }
	cat >program.py <<-'END'
		import sys, symmem
		assert "torch" not in sys.modules
		world = symmem.init(backend="host", check="every")
		with symmem.use(world):
		    block = symmem.alloc(4096)
		symmem.check()
		print(symmem.__version__, symmem.__file__)
		symmem.finalize(force=True)
	END
	"$python" -m venv --without-pip clean
	"$python" -m pip --python clean/bin/python install -q --no-deps built/*.whl
	export PATH=$work/clean/bin:/usr/bin:/bin
	check_version symmem
	expect 0 "Passed: 16 \\| Failed: 0" symmem verify --backend host
	expect 0 "" symmem doctor
	expect 0 "Usage" symmem tune --help
	expect 0 "symmem launch" python -m symmem.verify --help
	expect 0 "$version .*/clean/" symmem launch -n 2 -- python program.py
}

check_sums
check_module
check_command
check_cross_compiled
check_library
check_python
step "the release is complete"
