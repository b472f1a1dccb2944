/* Reductions in the order of ranks. 16-bit types are added in float32, and integers in 64 bits. */
#pragma GCC optimize("O3")
#include <string.h>

#include "comm.h"

enum { BLOCK = 512 }; /* elements processed at a time */

size_t type_bytes(ncclDataType_t type) {
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return bytes[type];
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_bfloat(uint16_t bits) { return float_of((uint32_t)bits << 16); }

/* Rounds to nearest, with ties to even, like all conversions below. A NaN remains a NaN. */
static uint16_t to_bfloat(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

/* Converts a half. Its exponent bias is 112 smaller. A product with a power of two corrects the
 * bias, also for subnormal numbers. The code uses integers, because compilers vectorize them. */
static float from_half(uint16_t half) {
    uint32_t bits = bits_of(float_of((half & 0x7fffu) << 13) * 0x1p112f);
    bits |= bits >= 0x47800000 ? 0x7f800000 : 0; /* 2^16 and more: infinity or NaN */
    return float_of(bits | (half & 0x8000u) << 16);
}

static uint16_t to_half(float value) {
    uint32_t bits = bits_of(value), sign = bits & 0x80000000, size = bits ^ sign;
    /* Adding 0.5 rounds a subnormal number and places it in the last bits. */
    uint32_t small = bits_of(float_of(size) + 0.5f) - 0x3f000000;
    uint32_t normal = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    uint32_t beyond = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    uint32_t half = size >= 0x47800000 ? beyond : size < 0x38800000 ? small : normal;
    return (uint16_t)(half | sign >> 16);
}

#define LOAD(element)                                                                              \
    for (size_t i = 0; i < n; i++)                                                                 \
        out[i] = ((const element *)in)[at + i]
#define STORE(element)                                                                             \
    for (size_t i = 0; i < n; i++)                                                                 \
        ((element *)out)[at + i] = (element)in[i]

static void load_float(float *out, const void *in, size_t at, size_t n, ncclDataType_t type) {
    if (type == ncclFloat32)
        memcpy(out, (const float *)in + at, n * sizeof *out);
    else if (type == ncclFloat16)
        for (size_t i = 0; i < n; i++)
            out[i] = from_half(((const uint16_t *)in)[at + i]);
    else
        for (size_t i = 0; i < n; i++)
            out[i] = from_bfloat(((const uint16_t *)in)[at + i]);
}

static void store_float(void *out, size_t at, const float *in, size_t n, ncclDataType_t type) {
    if (type == ncclFloat32)
        memcpy((float *)out + at, in, n * sizeof *in);
    else if (type == ncclFloat16)
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)out)[at + i] = to_half(in[i]);
    else
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)out)[at + i] = to_bfloat(in[i]);
}

static void load_double(double *out, const void *in, size_t at, size_t n, ncclDataType_t type) {
    (void)type;
    LOAD(double);
}

static void store_double(void *out, size_t at, const double *in, size_t n, ncclDataType_t type) {
    (void)type;
    STORE(double);
}

static void load_signed(int64_t *out, const void *in, size_t at, size_t n, ncclDataType_t type) {
    if (type == ncclInt8)
        LOAD(int8_t);
    else if (type == ncclInt32)
        LOAD(int32_t);
    else
        LOAD(int64_t);
}

static void store_signed(void *out, size_t at, const int64_t *in, size_t n, ncclDataType_t type) {
    if (type == ncclInt8)
        STORE(int8_t);
    else if (type == ncclInt32)
        STORE(int32_t);
    else
        STORE(int64_t);
}

static void load_unsigned(uint64_t *out, const void *in, size_t at, size_t n, ncclDataType_t type) {
    if (type == ncclUint8)
        LOAD(uint8_t);
    else if (type == ncclUint32)
        LOAD(uint32_t);
    else
        LOAD(uint64_t);
}

static void store_unsigned(void *out, size_t at, const uint64_t *in, size_t n,
                           ncclDataType_t type) {
    if (type == ncclUint8)
        STORE(uint8_t);
    else if (type == ncclUint32)
        STORE(uint32_t);
    else
        STORE(uint64_t);
}

/* Defines the reduction for one accumulator type. As on a GPU, signed sums wrap. As in NCCL, an
 * average scales floating-point numbers before the sum, and divides integer sums after they have
 * wrapped in their type. Minimum and maximum ignore a NaN if the other operand is a number. */
#define REDUCTION(name, number, wrapping, floating)                                                \
    static void scale_##name(number *some, size_t n, int ranks) {                                  \
        for (size_t i = 0; i < n; i++)                                                             \
            some[i] = floating ? some[i] * (number)(1.0 / ranks) : some[i] / (number)ranks;        \
    }                                                                                              \
                                                                                                   \
    static void combine_##name(number *sum, const number *next, size_t n, ncclRedOp_t op) {        \
        if (op == ncclProd)                                                                        \
            for (size_t i = 0; i < n; i++)                                                         \
                sum[i] = (number)((wrapping)sum[i] * (wrapping)next[i]);                           \
        else if (op == ncclMax)                                                                    \
            for (size_t i = 0; i < n; i++)                                                         \
                sum[i] = sum[i] < next[i] || sum[i] != sum[i] ? next[i] : sum[i];                  \
        else if (op == ncclMin)                                                                    \
            for (size_t i = 0; i < n; i++)                                                         \
                sum[i] = next[i] < sum[i] || sum[i] != sum[i] ? next[i] : sum[i];                  \
        else                                                                                       \
            for (size_t i = 0; i < n; i++)                                                         \
                sum[i] = (number)((wrapping)sum[i] + (wrapping)next[i]);                           \
    }                                                                                              \
                                                                                                   \
    static void reduce_##name(void *dst, const void *const *sources, int ranks, size_t count,      \
                              ncclDataType_t type, ncclRedOp_t op) {                               \
        number sum[BLOCK], next[BLOCK];                                                            \
        for (size_t at = 0; at < count; at += BLOCK) {                                             \
            size_t n = count - at < BLOCK ? count - at : BLOCK;                                    \
            load_##name(sum, sources[0], at, n, type);                                             \
            if (op == ncclAvg && floating)                                                         \
                scale_##name(sum, n, ranks);                                                       \
            for (int r = 1; r < ranks; r++) {                                                      \
                load_##name(next, sources[r], at, n, type);                                        \
                if (op == ncclAvg && floating)                                                     \
                    scale_##name(next, n, ranks);                                                  \
                combine_##name(sum, next, n, op);                                                  \
            }                                                                                      \
            if (op == ncclAvg && !(floating)) {                                                    \
                store_##name(dst, at, sum, n, type);                                               \
                load_##name(sum, dst, at, n, type);                                                \
                scale_##name(sum, n, ranks);                                                       \
            }                                                                                      \
            store_##name(dst, at, sum, n, type);                                                   \
        }                                                                                          \
    }

REDUCTION(float, float, float, true)
REDUCTION(double, double, double, true)
REDUCTION(signed, int64_t, uint64_t, false)
REDUCTION(unsigned, uint64_t, uint64_t, false)

/* Reduces the same elements of n ranks. dst may be one of the sources. */
void reduce(void *dst, const void *const *sources, int n, size_t count, ncclDataType_t type,
            ncclRedOp_t op) {
    switch (type) {
    case ncclFloat64:
        reduce_double(dst, sources, n, count, type, op);
        break;
    case ncclFloat16:
    case ncclFloat32:
    case ncclBfloat16:
        reduce_float(dst, sources, n, count, type, op);
        break;
    case ncclInt8:
    case ncclInt32:
    case ncclInt64:
        reduce_signed(dst, sources, n, count, type, op);
        break;
    default:
        reduce_unsigned(dst, sources, n, count, type, op);
    }
}

/* Multiplies elements, and rounds the products to their type. */
void scale(void *elements, size_t count, ncclDataType_t type, double factor) {
    float some[BLOCK];
    if (type == ncclFloat64)
        for (size_t i = 0; i < count; i++)
            ((double *)elements)[i] *= factor;
    for (size_t at = 0; type != ncclFloat64 && at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        load_float(some, elements, at, n, type);
        for (size_t i = 0; i < n; i++)
            some[i] *= (float)factor;
        store_float(elements, at, some, n, type);
    }
}

/* Reads the first element as a number. */
double first_of(const void *elements, ncclDataType_t type) {
    float value;
    if (type == ncclFloat64)
        return *(const double *)elements;
    load_float(&value, elements, 0, 1, type);
    return (double)value;
}
