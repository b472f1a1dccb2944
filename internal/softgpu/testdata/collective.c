/* Collectives of ranks that are threads. Both paths must give correct results for all types and
 * operations. Calls that NCCL executes wrongly without an error must do the same here. */
#include "scene.h"

static char *bytes_at(CUdeviceptr at) { return (char *)(uintptr_t)at; }
static float *floats_at(CUdeviceptr at) { return (float *)(uintptr_t)at; }

/* Sums of float32. Element i of rank r is i % 100 + r. */
static float expected_sum(size_t i, int ranks) {
    return (float)((int)(i % 100) * ranks + ranks * (ranks - 1) / 2);
}

static void fill_floats(CUdeviceptr at, size_t count, int rank) {
    for (size_t i = 0; i < count; i++)
        floats_at(at)[i] = (float)((int)(i % 100) + rank);
}

static size_t wrong_sums(CUdeviceptr at, size_t first, size_t count, int ranks) {
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += floats_at(at)[i] != expected_sum(first + i, ranks);
    return wrong;
}

/* Runs all-reduce, all-gather and reduce-scatter of float32 in the memory at an address. */
static void play_floats(struct rank *r, CUdeviceptr at) {
    size_t n = 100003, part = n / (size_t)r->ranks;
    CUdeviceptr send = at, recv = at + 2 * MIB;
    fill_floats(send, n, r->number);
    MUST(ncclAllReduce(floats_at(send), floats_at(recv), n, ncclFloat32, ncclSum, r->comm,
                       r->stream));
    sync_rank(r);
    CHECK(wrong_sums(recv, 0, n, r->ranks) == 0);
    MUST(ncclReduceScatter(floats_at(send), floats_at(recv), part, ncclFloat32, ncclSum, r->comm,
                           r->stream));
    sync_rank(r);
    CHECK(wrong_sums(recv, part * (size_t)r->number, part, r->ranks) == 0);
    CUdeviceptr own = at + 3 * MIB;
    memcpy(floats_at(own), floats_at(recv), part * 4);
    MUST(ncclAllGather(floats_at(own), floats_at(recv), part, ncclFloat32, r->comm, r->stream));
    sync_rank(r);
    CHECK(wrong_sums(recv, 0, part * (size_t)r->ranks, r->ranks) == 0);
    /* In place. */
    MUST(ncclAllReduce(floats_at(send), floats_at(send), n, ncclFloat32, ncclSum, r->comm,
                       r->stream));
    sync_rank(r);
    CHECK(wrong_sums(send, 0, n, r->ranks) == 0);
}

static void scene_paths(struct rank *r) {
    play_floats(r, r->segment.at);
    register_rank(r);
    CHECK(r->window != NULL);
    play_floats(r, r->segment.at);
    play_floats(r, r->segment.alias);
}

static void set(char *at, ncclDataType_t type, size_t i, double v) {
    uint32_t bits;
    float f = (float)v;
    memcpy(&bits, &f, 4);
    switch (type) {
    case ncclInt8: ((int8_t *)at)[i] = (int8_t)v; break;
    case ncclUint8: ((uint8_t *)at)[i] = (uint8_t)v; break;
    case ncclInt32: ((int32_t *)at)[i] = (int32_t)v; break;
    case ncclUint32: ((uint32_t *)at)[i] = (uint32_t)v; break;
    case ncclInt64: ((int64_t *)at)[i] = (int64_t)v; break;
    case ncclUint64: ((uint64_t *)at)[i] = (uint64_t)v; break;
    case ncclFloat16: ((_Float16 *)at)[i] = (_Float16)v; break;
    case ncclFloat32: ((float *)at)[i] = f; break;
    case ncclFloat64: ((double *)at)[i] = v; break;
    default: ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
    }
}

static double get(const char *at, ncclDataType_t type, size_t i) {
    uint32_t bits;
    float f;
    switch (type) {
    case ncclInt8: return ((const int8_t *)at)[i];
    case ncclUint8: return ((const uint8_t *)at)[i];
    case ncclInt32: return ((const int32_t *)at)[i];
    case ncclUint32: return ((const uint32_t *)at)[i];
    case ncclInt64: return (double)((const int64_t *)at)[i];
    case ncclUint64: return (double)((const uint64_t *)at)[i];
    case ncclFloat16: return (double)((const _Float16 *)at)[i];
    case ncclFloat32: return (double)((const float *)at)[i];
    case ncclFloat64: return ((const double *)at)[i];
    default:
        bits = (uint32_t)((const uint16_t *)at)[i] << 16;
        memcpy(&f, &bits, 4);
        return (double)f;
    }
}

/* Returns the result for the values 2, 4, ... of ranks 0, 1, ... With two ranks averages are
 * exact. */
static double expected(ncclRedOp_t op) {
    static const double values[] = {6, 8, 4, 2, 3};
    return values[op];
}

static void scene_types(struct rank *r) {
    char *send = bytes_at(r->segment.at), *recv = send + MIB;
    for (int type = 0; type < ncclNumTypes; type++)
        for (int op = 0; op < ncclNumOps; op++) {
            for (size_t i = 0; i < 700; i++)
                set(send, type, i, 2 * (r->number + 1));
            MUST(ncclAllReduce(send, recv, 700, type, op, r->comm, r->stream));
            sync_rank(r);
            for (size_t i = 0; i < 700; i++)
                CHECK(get(recv, type, i) == expected(op));
        }
}

static void scene_factors(struct rank *r) {
    char *send = bytes_at(r->segment.at), *recv = send + MIB;
    for (int type = ncclFloat16; type < ncclNumTypes; type++)
        for (int round = 0; round < 40; round++) {
            char factor[8] = {0};
            ncclRedOp_t op;
            set(factor, type, 0, 0.75 + r->number);
            for (size_t i = 0; i < 700; i++)
                set(send, type, i, 2);
            MUST(ncclRedOpCreatePreMulSum(&op, factor, type, ncclScalarHostImmediate, r->comm));
            MUST(ncclAllReduce(send, recv, 700, type, op, r->comm, r->stream));
            MUST(ncclRedOpDestroy(op, r->comm));
            sync_rank(r);
            for (size_t i = 0; i < 700; i++)
                CHECK(get(recv, type, i) == 2 * (0.75 + 1.75));
        }
}

/* Compares halves of all bit patterns with the compiler's arithmetic. */
static uint16_t pattern(unsigned i, int rank) { return (uint16_t)(rank == 0 ? i : i * 40503 + 7); }

static void scene_halves(struct rank *r) {
    uint16_t *send = (uint16_t *)(void *)bytes_at(r->segment.at), *recv = send + MIB / 2;
    for (unsigned i = 0; i < 65536; i++)
        send[i] = pattern(i, r->number);
    MUST(ncclAllReduce(send, recv, 65536, ncclFloat16, ncclSum, r->comm, r->stream));
    sync_rank(r);
    for (unsigned i = 0; i < 65536; i++) {
        _Float16 parts[2], sum, got;
        for (int k = 0; k < 2; k++) {
            uint16_t bits = pattern(i, k);
            memcpy(&parts[k], &bits, 2);
        }
        sum = (_Float16)((float)parts[0] + (float)parts[1]);
        memcpy(&got, &recv[i], 2);
        CHECK(memcmp(&sum, &got, 2) == 0 || ((float)sum != (float)sum && (float)got != (float)got));
    }
}

static void scene_rooted(struct rank *r) {
    int *send = (int *)(void *)bytes_at(r->segment.at), *recv = send + MIB / 4;
    int n = 200000, last = r->ranks - 1, rank = r->number;
    for (int i = 0; i < n; i++) {
        send[i] = i * (rank + 1);
        recv[i] = -1;
    }
    MUST(ncclReduce(send, recv, (size_t)n, ncclInt32, ncclMax, last, r->comm, r->stream));
    sync_rank(r);
    for (int i = 0; i < n; i++)
        CHECK(recv[i] == (rank == last ? i * (last + 1) : -1));
    MUST(ncclBroadcast(send, recv, (size_t)n, ncclInt32, last, r->comm, r->stream));
    sync_rank(r);
    for (int i = 0; i < n; i++)
        CHECK(recv[i] == i * (last + 1));
    n = 60000;
    MUST(ncclAlltoAll(send, recv, (size_t)n, ncclInt32, r->comm, r->stream));
    sync_rank(r);
    for (int i = 0; i < n * r->ranks; i++)
        CHECK(recv[i] == (rank * n + i % n) * (i / n + 1));
}

static void scene_pairs(struct rank *r) {
    int *send = (int *)(void *)bytes_at(r->segment.at), *recv = send + MIB / 4;
    int n = 150000, next = (r->number + 1) % r->ranks;
    int before = (r->number + r->ranks - 1) % r->ranks;
    for (int i = 0; i < n; i++)
        send[i] = i ^ r->number;
    for (int round = 0; round < 5; round++) {
        memset(recv, 0, (size_t)n * 4);
        MUST(ncclGroupStart());
        MUST(ncclSend(send, (size_t)n / 2, ncclInt32, next, r->comm, r->stream));
        MUST(ncclSend(send + n / 2, (size_t)n / 2, ncclInt32, next, r->comm, r->stream));
        MUST(ncclRecv(recv, (size_t)n / 2, ncclInt32, before, r->comm, r->stream));
        MUST(ncclRecv(recv + n / 2, (size_t)n / 2, ncclInt32, before, r->comm, r->stream));
        MUST(ncclGroupEnd());
        sync_rank(r);
        for (int i = 0; i < n; i++)
            CHECK(recv[i] == (i ^ before));
    }
}

/* The buffers of one rank have an offset of 4096 bytes. The window path gives wrong results, and
 * the plain path correct ones. */
static void scene_misplaced(struct rank *r) {
    size_t n = 100000, shift = r->number == 1 ? 4096 : 0;
    register_rank(r);
    CUdeviceptr bases[] = {r->segment.alias, r->segment.at};
    for (int i = 0; i < 2; i++) {
        CUdeviceptr send = bases[i] + shift, recv = send + 2 * MIB;
        fill_floats(send, n, r->number);
        MUST(ncclAllReduce(floats_at(send), floats_at(recv), n, ncclFloat32, ncclSum, r->comm,
                           r->stream));
        sync_rank(r);
        size_t wrong = wrong_sums(recv, 0, n, r->ranks);
        CHECK(i == 0 ? wrong == 0 : wrong > n / 2);
    }
}

/* Registers windows of different sizes. Every rank gets an error, and the communicator remains
 * usable. */
static void scene_sizes(struct rank *r) {
    void *at = (void *)(uintptr_t)r->segment.at;
    size_t bytes = r->number == 0 ? SEGMENT : SEGMENT / 2;
    EXPECT(ncclUnhandledCudaError, ncclCommWindowRegister(r->comm, at, bytes, &r->window, 1));
    CHECK(r->window == NULL);
    play_floats(r, r->segment.at);
    register_rank(r);
    play_floats(r, r->segment.at);
}

/* Calls with invalid memory, alignment and arguments. */
static void scene_refused(struct rank *r) {
    static char ordinary[8192];
    char *at = bytes_at(r->segment.at);
    void *handle;
    EXPECT(1, ncclCommWindowRegister(r->comm, ordinary, 4096, &r->window, 1));
    EXPECT(4, ncclCommWindowRegister(r->comm, at + 64, 4096, &r->window, 1));
    EXPECT(4, ncclCommWindowRegister(r->comm, at, 0, &r->window, 1));
    EXPECT(4, ncclAllReduce(at, at, 1, 99, ncclSum, r->comm, r->stream));
    EXPECT(4, ncclBroadcast(at, at, 1, ncclInt8, r->ranks, r->comm, r->stream));
    EXPECT(4, ncclCommWindowDeregister(r->comm, (ncclWindow_t)(void *)at));
    MUST(ncclCommRegister(r->comm, at, SEGMENT, &handle));
    MUST(ncclCommDeregister(r->comm, handle));
    EXPECT(5, ncclCommDeregister(r->comm, handle));
    EXPECT(5, ncclGroupEnd());
}

int main(void) {
    play(RANKS, scene_paths, NULL);
    play(2, scene_types, NULL);
    play(2, scene_factors, NULL);
    play(2, scene_halves, NULL);
    play(RANKS, scene_rooted, NULL);
    play(RANKS, scene_pairs, NULL);
    play(RANKS, scene_misplaced, NULL);
    play(RANKS, scene_sizes, NULL);
    play(RANKS, scene_refused, NULL);
    return 0;
}
