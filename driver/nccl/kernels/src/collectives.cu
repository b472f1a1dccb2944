// The kernels of collectives. Kernels with a reduction exist for the common element types. All kernels
// exist for 2 ranks, for 4 ranks, and for any number up to 8, with two exceptions. Two-shot kernels do not
// exist for 2 ranks, where one-shot kernels send the same amount. Unrolled kernels exist only for 2 ranks,
// because larger groups reduce messages of that size in two shots. Rare calls take the kernels of any
// reduction, which handle all types, operations and orders. That keeps the other kernels short.
#include <bulk.h>
#include <line.h>
#include <local.h>

// Two blocks of the kernels with bound 2 fit on a multiprocessor, and one block of all other collectives
// (see Launch.resident). Two-shot kernels run in blocks of 512 threads. Their bound of 576 leaves registers
// for a block of a small call.
#define LINE_2 KERNEL_OF(640, 2)
#define LINE_4 KERNEL_OF(640, 2)
#define LINE_8 KERNEL
#define WIDE_2 KERNEL_OF(640, 2)
#define WIDE_4 KERNEL
#define WIDE_8 KERNEL
#define TWO_4 KERNEL_OF(576, 2)
#define TWO_8 KERNEL

// EARLY allows the next kernel to launch while this one runs. The blocks of that kernel are then resident
// while they wait. Kernels of any reduction do not use EARLY and are not launched early, because each
// block occupies a whole multiprocessor. Waiting blocks could occupy one that another group, or another
// rank on the same GPU, needs.
#define EARLY dev::next_may_launch();

#define REDUCTIONS(type, N, ranks) \
	LINE_##ranks line_sum_##type##_##ranks(const __grid_constant__ Call call) { EARLY line<SumSteps<N, u64, ranks>>(call); } \
	WIDE_##ranks wide_sum_##type##_##ranks(const __grid_constant__ Call call) { EARLY wide<SumSteps<N, Pack, ranks>>(call); } \
	KERNEL bulk_sum_##type##_##ranks(const __grid_constant__ Bulk call) { EARLY bulk_sum<N, ranks>(call); } \
	KERNEL bulk_two_shot_##type##_##ranks(const __grid_constant__ Bulk call) { EARLY bulk_two_shot<N, ranks>(call); }

#define TWO_SHOT(type, N, ranks) \
	TWO_##ranks line_two_shot_##type##_##ranks(const __grid_constant__ Call call) { EARLY line_two_shot<N, u64, ranks>(call); }

#define UNROLLED(type, N, ranks) \
	WIDE_##ranks unrolled_sum_##type##_##ranks(const __grid_constant__ Call call) { EARLY unrolled<SumSteps<N, Pack, ranks>>(call); }

#define TYPES(which, ranks) \
	which(f32, F32, ranks) \
	which(f16, F16, ranks) \
	which(bf16, BF16, ranks) \
	which(i32, I32, ranks)

#define COLLECTIVES(ranks) \
	TYPES(REDUCTIONS, ranks) \
	LINE_##ranks line_copy_##ranks(const __grid_constant__ Call call) { EARLY line<CopySteps<u64, ranks>>(call); } \
	WIDE_##ranks wide_copy_##ranks(const __grid_constant__ Call call) { EARLY wide<CopySteps<Pack, ranks>>(call); } \
	KERNEL bulk_copy_##ranks(const __grid_constant__ Bulk call) { EARLY bulk_copy<ranks>(call); }

COLLECTIVES(2)
COLLECTIVES(4)
COLLECTIVES(8)
TYPES(UNROLLED, 2)
TYPES(TWO_SHOT, 4)
TYPES(TWO_SHOT, 8)

KERNEL wide_any(const __grid_constant__ Call call) { wide<SumSteps<Any, Pack, MaxRanks>>(call); }
KERNEL line_two_shot_any(const __grid_constant__ Call call) { line_two_shot<Any, u64, MaxRanks>(call); }
KERNEL bulk_any(const __grid_constant__ Bulk call) { bulk_sum<Any, MaxRanks>(call); }
KERNEL bulk_two_shot_any(const __grid_constant__ Bulk call) { bulk_two_shot<Any, MaxRanks>(call); }

// after_all ends when all earlier work in its stream has ended. No later kernel starts before that.
KERNEL after_all(u32) {}

KERNEL_OF(512, 2) norm_short_bf16(const __grid_constant__ Local call) { norm_local<ShortRounds>(call); }
KERNEL norm_long_bf16(const __grid_constant__ Local call) { norm_local<LongRounds>(call); }
KERNEL add_local_bf16(const __grid_constant__ Local call) { add_local(call); }
KERNEL rms_local_bf16(const __grid_constant__ Local call) { rms_local(call); }
