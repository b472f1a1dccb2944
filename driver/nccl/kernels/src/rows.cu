// The kernels of gathers and scatters of rows. Like those of other collectives, they exist for 2 ranks, for 4
// ranks, and for any number up to 8. They are large, so only one block fits on a multiprocessor.
#include <rows.h>

#define EARLY dev::next_may_launch();

#define SCATTERS(type, N, ranks) \
	KERNEL rows_sum_##type##_##ranks(const __grid_constant__ Scatter call) { EARLY wide<ScatterSteps<N, ranks>>(call); } \
	KERNEL rows_bulk_sum_##type##_##ranks(const __grid_constant__ Scatter call) { EARLY bulk_scatter<N, ranks>(call); }

#define ROWS(ranks) \
	SCATTERS(f32, F32, ranks) \
	SCATTERS(f16, F16, ranks) \
	SCATTERS(bf16, BF16, ranks) \
	SCATTERS(i32, I32, ranks) \
	KERNEL rows_copy_##ranks(const __grid_constant__ Gather call) { EARLY wide<GatherSteps<ranks>>(call); } \
	KERNEL rows_bulk_copy_##ranks(const __grid_constant__ Gather call) { EARLY bulk_gather<ranks>(call); }

ROWS(2)
ROWS(4)
ROWS(8)
