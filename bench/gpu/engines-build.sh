#!/usr/bin/env bash
# Builds what engines.sh runs, into build/gpu: the Python package with its library, and an archive of
# the Python files of vLLM and SGLang from PyPI, of 20 MB. Carry build/gpu/python and
# build/gpu/engines.tar.xz to a machine with GPUs, whose Python is $PYTHON_VERSION (3.12).
set -euo pipefail
cd "$(dirname "$0")/../.."
bench/gpu/torch-build.sh
files=build/gpu/engines
rm -rf "$files" "$files.lock"
"${PYTHON:-python3}" python/tests/engine_files.py "$files" "${PYTHON_VERSION:-3.12}"
# Tests, and the generation of images, are no part of the groups.
tar -C "$files" --exclude=__pycache__ --exclude=./sglang/multimodal_gen --exclude=./sglang/test \
	-I "xz -3" -cf "$files.tar.xz" .
rm -rf "$files" "$files.lock"
ls -l "$files.tar.xz"
