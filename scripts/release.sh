#!/usr/bin/env bash
# Builds the files of a release from the tracked files of this checkout.
#
#   scripts/release.sh --module PATH --version V [--out DIR] [--check]
#
#   --module PATH   import path of the published module, such as example.com/symmem
#   --version V     semantic version, such as 0.1.0 or 0.1.0-rc.1
#   --out DIR       where the files go (dist/V); an earlier release there is replaced
#   --check         then test them, by scripts/release_check.sh
#
# The files, for linux/amd64 unless their name says otherwise:
#
#   symmem-V-linux-amd64.tar.gz            the command, its manual pages and completions
#   symmem-V-linux-arm64-not-run.tar.gz    the same, cross-compiled and never run
#   libsymmem-V-linux-amd64.tar.gz         libsymmem.so, symmem.h, symmem.pc
#   symmem-V-py3-none-manylinux_*.whl      the Python package, with the library and the command
#   symmem-V.tar.gz                        its source distribution (Python writes 0.1.0rc1)
#   goproxy/                               the Go module, as GOPROXY=file://... reads it
#   SHA256SUMS
#
# All work is done in a copy, in which the module gets its path, the version and the commit. It needs
# hatchling in $PYTHON, by default build/venv, into which "make setup" installs it.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."

fail() { echo "release.sh: $*" >&2 && exit 2; }
usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//p}' "$0"; }

module='' version='' out='' check=false
while [ $# -gt 0 ]; do
	case $1 in
	--module | --version | --out)
		[ $# -ge 2 ] || fail "$1 needs a value"
		printf -v "${1#--}" %s "$2"
		shift
		;;
	--check) check=true ;;
	-h | --help) usage && exit ;;
	*) usage >&2 && exit 2 ;;
	esac
	shift
done
[[ $module =~ ^[a-z0-9.-]+\.[a-z]+(/[A-Za-z0-9._~-]+)+$ ]] ||
	fail "--module is \"$module\": want a path that begins with a domain"
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-(alpha|beta|rc)\.[0-9]+)?$ ]] ||
	fail "--version is \"$version\": want MAJOR.MINOR.PATCH, or that and -rc.N, -beta.N or -alpha.N"
out=${out:-$PWD/dist/$version}
final=$(cd "$caller" && realpath -m "$out")
[ ! -e "$final" ] || [ -e "$final/SHA256SUMS" ] || fail "$final exists and is no release: remove it"
[ -n "${PYTHON:-}" ] || [ ! -e build/venv ] || PYTHON=build/venv/bin/python
python=$(realpath -s "$(command -v "${PYTHON:-python3}")")
"$python" -c 'import hatchling' 2>/dev/null || fail "$python has no hatchling: run make setup"

commit=$(git rev-parse HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] || commit+=-modified
date=$(git log -1 --format=%ct)
export GOTOOLCHAIN=local GOFLAGS="-buildvcs=false -trimpath"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/zip/$module@v$version out=$work/out

# copy_tree copies the tracked files.
copy_tree() {
	mkdir -p "$tree"
	git ls-files -z | tar --null --files-from=- -c | tar -x -C "$tree"
}

# rename_module replaces the path of the module in imports and in the other strings that name
# packages, and sorts the imports again.
rename_module() {
	local old folders
	old=$(cd "$tree" && go list -m)
	folders=$(git ls-files '*/*.go' | cut -d/ -f1 | sort -u | paste -sd'|')
	(
		cd "$tree"
		go mod edit -module "$module"
		find . -name '*.go' -print0 | xargs -0 sed -i -E \
			-e "s#\"$old/($folders)([/\"])#\"$module/\1\2#g" \
			-e "s#^((import )?|(const module = )?|\t([a-z_.]+ )?)\"$old\"\$#\1\"$module\"#"
		gofmt -w .
		sed -i "s#symmem@v0\.0\.0#$module@v0.0.0#; s#\"symmem=#\"$module=#" examples/module.sh
	)
}

# stamp sets the version and the commit. Python's version is read from the same file.
stamp() {
	sed -i -E -e "s/^(\trelease = ).*/\1\"$version\"/" -e "s/^(\tcommit  = ).*/\1\"$commit\"/" \
		"$tree/cmd/symmem/version.go"
	sed -i "s/^#define SYMMEM_ABI_VERSION .*/&\n#define SYMMEM_VERSION \"$version\"/" \
		"$tree/cmd/libsymmem/symmem.h"
}

# licenses collects those of Go and of the modules that the binaries contain.
licenses() {
	local name folder
	{
		echo "== Go"
		cat "$(go env GOROOT)/LICENSE"
		go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}' \
			./cmd/... | sort -u | while read -r name folder; do
			printf '\n== %s\n' "$name"
			cat "$folder"/LICENSE*
		done
	} >"$tree/LICENSE-dependencies"
}

# pack NAME makes an archive of the folder of that name, with bytes that depend on its files alone.
pack() {
	tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$date" \
		-c "$1" | gzip -n >"$out/$1.tar.gz"
}

# command_archive NAME PROCESSOR builds the command, and the pages and completions that it prints.
command_archive() {
	local to=$work/$1 shell
	mkdir -p "$to"/bin "$to"/share/{bash-completion/completions,zsh/site-functions} \
		"$to"/share/fish/vendor_completions.d
	(cd "$tree" && CGO_ENABLED=0 GOARCH=$2 go build -ldflags="-s -w" -o "$to/bin/symmem" ./cmd/symmem)
	SOURCE_DATE_EPOCH=$date "$tree/python/.build/symmem" man "$to/share/man/man1"
	for shell in bash:bash-completion/completions/symmem zsh:zsh/site-functions/_symmem \
		fish:fish/vendor_completions.d/symmem.fish; do
		"$tree/python/.build/symmem" completion "${shell%%:*}" >"$to/share/${shell#*:}"
	done
	cp LICENSE "$tree/LICENSE-dependencies" "$to"
	pack "$1"
}

# library_archive NAME collects the library, its header, and what pkg-config reads. Their places are
# relative to symmem.pc, so the folder can be unpacked anywhere.
library_archive() {
	local to=$work/$1
	mkdir -p "$to"/include "$to"/lib/pkgconfig
	cp "$tree/python/src/symmem/libsymmem.so" "$to/lib"
	cp "$tree/cmd/libsymmem/symmem.h" "$to/include"
	cat >"$to/lib/pkgconfig/symmem.pc" <<-END
		prefix=\${pcfiledir}/../..
		Name: symmem
		Description: Symmetric memory for collectives on GPUs and CPUs
		Version: $version
		Cflags: -I\${prefix}/include
		Libs: -L\${prefix}/lib -lsymmem
	END
	cp LICENSE "$tree/LICENSE-dependencies" "$to"
	pack "$1"
}

# go_module lays the sources out as the protocol of GOPROXY has it.
go_module() {
	local at
	at=$out/goproxy/$(sed -E 's/[A-Z]/!\L&/g' <<<"$module")/@v
	mkdir -p "$at"
	cp "$tree/go.mod" "$at/v$version.mod"
	echo "v$version" >"$at/list"
	date -u -d "@$date" +"{\"Version\":\"v$version\",\"Time\":\"%Y-%m-%dT%H:%M:%SZ\"}" \
		>"$at/v$version.info"
	"$python" - "$work/zip" "$at/v$version.zip" <<-'END'
		import pathlib, sys, zipfile
		top = pathlib.Path(sys.argv[1])
		with zipfile.ZipFile(sys.argv[2], "w", zipfile.ZIP_DEFLATED) as z:
		    for file in sorted(p for p in top.rglob("*") if p.is_file()):
		        name = zipfile.ZipInfo(str(file.relative_to(top))) # without a time
		        z.writestr(name, file.read_bytes(), zipfile.ZIP_DEFLATED)
	END
}

mkdir "$out"
copy_tree
rename_module
stamp
go_module # before anything is built there
licenses
# The wheel has a backend of torch.distributed for each of these.
if [ -z "${SYMMEM_TORCH_PYTHONS+set}" ] && "$python" -c 'import torch' 2>/dev/null; then
	export SYMMEM_TORCH_PYTHONS=$python
fi
(cd "$tree" && "$python" -m hatchling build -d "$out" >"$work/log" 2>&1) ||
	{ cat "$work/log" && exit 1; }
command_archive "symmem-$version-linux-amd64" amd64
command_archive "symmem-$version-linux-arm64-not-run" arm64
library_archive "libsymmem-$version-linux-amd64"
(cd "$out" && find . -type f | sort | xargs sha256sum >"$work/sums" && mv "$work/sums" SHA256SUMS)
mkdir -p "$(dirname "$final")"
rm -rf "$final"
mv "$out" "$final"
echo "$final:"
(cd "$final" && find . -type f | sort)
if $check; then
	PYTHON=$python scripts/release_check.sh "$final" "$module" "$version"
fi
