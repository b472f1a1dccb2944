"""A rank of symmem.verify, which imports PyTorch when it needs it, with that imported already."""

from __future__ import annotations

import sys

import torch

from symmem import verify

if __name__ == "__main__":
    assert torch.__version__
    sys.exit(verify.main())
