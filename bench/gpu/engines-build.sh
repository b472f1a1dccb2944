#!/usr/bin/env bash
# Builds into build/gpu what engines.sh runs: the Python package with its library, and an archive of
# 20 MB with the Python files of vLLM and SGLang from PyPI. Copy build/gpu/python and
# build/gpu/engines.tar.xz to a machine with GPUs and Python $PYTHON_VERSION (3.12).
set -euo pipefail
cd "$(dirname "$0")/../.."
bench/gpu/torch-build.sh
files=build/gpu/engines
rm -rf "$files" "$files.lock"
"${PYTHON:-python3}" python/tests/engine_files.py "$files" "${PYTHON_VERSION:-3.12}"
# The groups need neither tests nor the generation of images.
tar -C "$files" --exclude=__pycache__ --exclude=./sglang/multimodal_gen --exclude=./sglang/test \
	-I "xz -3" -cf "$files.tar.xz" .
rm -rf "$files" "$files.lock"
ls -l "$files.tar.xz"
