"""A rank of symmem.verify in which PyTorch is already imported.

With --by-address, segments are at random addresses and blocks are chosen by address, as in
PyTorch's allocator. This is the mistake that symmem prevents.
"""

from __future__ import annotations

import sys
from functools import partial

import torch

import symmem
from symmem import verify

BY_ADDRESS = {"pool": {"placement": "address", "first_segment": 2 << 20}, "scatter": 3}

if __name__ == "__main__":
    assert torch.__version__
    flags = sys.argv[1:]
    if "--by-address" in flags:
        flags.remove("--by-address")
        symmem.init = partial(symmem.init, options=BY_ADDRESS)
    sys.exit(verify.main(flags))
