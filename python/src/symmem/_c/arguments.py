"""The arguments of `symmem_call`, as a structure of ctypes."""

from __future__ import annotations

import ctypes as c

_list = c.POINTER(c.c_int64)


class Arguments(c.Structure):
    """Has the layout of `struct symmem_call` in symmem.h. Fields that are not set are 0."""


Arguments._fields_ = [
    ("size", c.c_size_t),
    ("group", c.c_uint64),
    ("stream", c.c_uint64),
    ("operation", c.c_int32),
    ("type", c.c_int32),
    ("op", c.c_int32),
    ("path", c.c_int32),
    ("root", c.c_int32),
    ("tag", c.c_int32),
    ("flags", c.c_uint32),
    ("site", c.c_uint32),
    ("count", c.c_int64),
    ("factor", c.c_double),
    ("send", c.c_void_p),
    ("recv", c.c_void_p),
    ("from_", c.POINTER(c.c_int32)),
    ("ranks", c.c_size_t),
    ("send_counts", _list),
    ("send_offsets", _list),
    ("recv_counts", _list),
    ("recv_offsets", _list),
    ("more_count", c.c_size_t),
    ("more", c.POINTER(Arguments)),
]
