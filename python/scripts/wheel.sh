#!/usr/bin/env bash
# Builds the wheel into dist with the hatchling of $PYTHON or, if there is none, one that pip
# downloads. The wheel has a backend of torch.distributed for the PyTorch of each Python in
# $SYMMEM_TORCH_PYTHONS, which is $PYTHON by default.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
isolation=()
if "$python" -c 'import hatchling' 2>/dev/null; then isolation=(--no-build-isolation); fi
if [ -z "${SYMMEM_TORCH_PYTHONS+set}" ] && "$python" -c 'import torch' 2>/dev/null; then
	SYMMEM_TORCH_PYTHONS=$python
fi
export SYMMEM_TORCH_PYTHONS=${SYMMEM_TORCH_PYTHONS:-}
rm -f dist/symmem-*.whl
"$python" -m pip wheel -q --no-deps --disable-pip-version-check "${isolation[@]}" -w dist .
ls dist/symmem-*.whl
