// The kernels that symmem launches. Those that reduce are there for the types of models; all are there for
// 2 and for 4 ranks, and for any number up to 8. There are no kernels of two steps for 2 ranks, where one
// step sends no more. Twin kernels are for 2 ranks only, whose sums are the only ones of that size in one
// step. What is rare takes the kernels of any reduction, which know all types, operations and orders: so
// the others stay short.
#include <bulk.h>
#include <line.h>
#include <local.h>

// Of these a multiprocessor has room for two blocks, of all others of collectives for one (Launch.resident). Two steps
// run in blocks of 512; the bound of 576 leaves registers for a block of a small call besides.
#define LINE_2 KERNEL_OF(640, 2)
#define LINE_4 KERNEL_OF(640, 2)
#define LINE_8 KERNEL
#define WIDE_2 KERNEL_OF(640, 2)
#define WIDE_4 KERNEL
#define WIDE_8 KERNEL
#define TWO_4 KERNEL_OF(576, 2)
#define TWO_8 KERNEL

// EARLY lets the next kernel launch while this one runs; it then waits with its blocks already resident.
// Kernels of any reduction do not do that, and are not launched so themselves: a block has a whole
// multiprocessor, and blocks that wait could hold what another rank on the same GPU needs, or another
// group.
#define EARLY dev::next_may_launch();

#define REDUCTIONS(type, N, ranks) \
	LINE_##ranks line_sum_##type##_##ranks(const __grid_constant__ Call call) { EARLY line<SumSteps<N, u64, ranks>>(call); } \
	WIDE_##ranks wide_sum_##type##_##ranks(const __grid_constant__ Call call) { EARLY wide<SumSteps<N, Pack, ranks>>(call); } \
	KERNEL bulk_sum_##type##_##ranks(const __grid_constant__ Bulk call) { EARLY bulk_sum<N, ranks>(call); } \
	KERNEL bulk_two_shot_##type##_##ranks(const __grid_constant__ Bulk call) { EARLY bulk_two_shot<N, ranks>(call); }

#define TWO_SHOT(type, N, ranks) \
	TWO_##ranks line_two_shot_##type##_##ranks(const __grid_constant__ Call call) { EARLY line_two_shot<N, u64, ranks>(call); }

#define TWIN(type, N, ranks) \
	WIDE_##ranks twin_sum_##type##_##ranks(const __grid_constant__ Call call) { EARLY twin<SumSteps<N, Pack, ranks>>(call); }

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
TYPES(TWIN, 2)
TYPES(TWO_SHOT, 4)
TYPES(TWO_SHOT, 8)

KERNEL wide_any(const __grid_constant__ Call call) { wide<SumSteps<Any, Pack, MaxRanks>>(call); }
KERNEL line_two_shot_any(const __grid_constant__ Call call) { line_two_shot<Any, u64, MaxRanks>(call); }
KERNEL bulk_any(const __grid_constant__ Bulk call) { bulk_sum<Any, MaxRanks>(call); }
KERNEL bulk_two_shot_any(const __grid_constant__ Bulk call) { bulk_two_shot<Any, MaxRanks>(call); }

// after_all ends when everything ahead of it in the stream has ended. So no kernel behind it begins before
// that.
KERNEL after_all(u32) {}

KERNEL_OF(512, 2) norm_short_bf16(const __grid_constant__ Local call) { norm_local<ShortRounds>(call); }
KERNEL norm_long_bf16(const __grid_constant__ Local call) { norm_local<LongRounds>(call); }
KERNEL add_local_bf16(const __grid_constant__ Local call) { add_local(call); }
KERNEL rms_local_bf16(const __grid_constant__ Local call) { rms_local(call); }
