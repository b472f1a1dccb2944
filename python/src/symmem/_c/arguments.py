"""The arguments of functions of symmem.h, as structures of ctypes."""

from __future__ import annotations

import ctypes as c

_list = c.POINTER(c.c_int64)


class Arguments(c.Structure):
    """Matches the layout of `struct symmem_call` in symmem.h. Fields that are not set are 0."""


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
    ("event", c.POINTER(c.c_uint64)),
]


class NormArguments(c.Structure):
    """Has the layout of `struct symmem_norm` in symmem.h. Fields that are not set are 0."""

    _fields_ = (
        ("size", c.c_size_t),
        ("rows", c.c_int64),
        ("hidden", c.c_int64),
        ("type", c.c_int32),
        ("quant", c.c_int32),
        ("epsilon", c.c_float),
        ("weight_bias", c.c_float),
        ("input", c.c_void_p),
        ("residual", c.c_void_p),
        ("weight", c.c_void_p),
        ("output", c.c_void_p),
        ("quantized", c.c_void_p),
        ("scales", c.c_void_p),
        ("scale_strides", c.c_int64 * 2),
    )


_routing = (
    ("size", c.c_size_t),
    ("experts", c.c_int32),
    ("top_k", c.c_int32),
    ("max_tokens", c.c_int64),
    ("hidden", c.c_int64),
    ("scales", c.c_int64),
    ("type", c.c_int32),
    ("unused", c.c_int32),
)


class RouteArguments(c.Structure):
    """Has the layout of `struct symmem_route` in symmem.h. Fields that are not set are 0."""

    _fields_ = (
        *_routing,
        ("tokens", c.c_int64),
        ("ids", c.c_void_p),
        ("weights", c.c_void_p),
        ("row_scales", c.c_void_p),
        ("send", c.c_void_p),
        ("recv", c.c_void_p),
    )


class PermuteArguments(c.Structure):
    """Has the layout of `struct symmem_permute` in symmem.h. Fields that are not set are 0."""

    _fields_ = (
        *_routing,
        ("align", c.c_int64),
        ("dispatched", c.c_void_p),
        ("permuted", c.c_void_p),
        ("computed", c.c_void_p),
        ("returned", c.c_void_p),
    )
