// The kernels of norms for float16 and bfloat16. Those with _q also quantize. Two-shot kernels do not exist
// for 2 ranks, where one-shot kernels send the same amount. Scatter kernels run ReduceScatterRMSNorm. Local
// kernels follow an all-reduce or a reduce-scatter by another kernel. Pull kernels are for many rows in
// symmetric memory: of a scatter on 2 or 4 ranks, or of an all-reduce on 2.
#include <bulknorm.h>

// One block of a long row fits on a multiprocessor, or two blocks of short rows. With fewer registers, two
// blocks of long rows would fit, but spilled registers made all calls slower.
#define ROWS KERNEL_OF(1024, 1)

#define ONE_SHOT(type, N, ranks) \
	ROWS norm_##type##_##ranks(const __grid_constant__ Norm call) { dev::next_may_launch(); norm_one_shot<N, ranks, false, false>(call); } \
	ROWS norm_q_##type##_##ranks(const __grid_constant__ Norm call) { dev::next_may_launch(); norm_one_shot<N, ranks, true, false>(call); } \
	ROWS norm_scatter_##type##_##ranks(const __grid_constant__ Norm call) { dev::next_may_launch(); norm_one_shot<N, ranks, false, true>(call); } \
	ROWS norm_scatter_q_##type##_##ranks(const __grid_constant__ Norm call) { dev::next_may_launch(); norm_one_shot<N, ranks, true, true>(call); }

#define TWO_SHOT(type, N, ranks) \
	ROWS norm_two_shot_##type##_##ranks(const __grid_constant__ Norm call) { dev::next_may_launch(); norm_two_shot<N, ranks, false>(call); } \
	ROWS norm_two_shot_q_##type##_##ranks(const __grid_constant__ Norm call) { dev::next_may_launch(); norm_two_shot<N, ranks, true>(call); }

#define PULL(type, N, ranks) \
	ROWS norm_pull_##type##_##ranks(const __grid_constant__ BulkNorm call) { dev::next_may_launch(); norm_pull<N, ranks, false>(call); } \
	ROWS norm_pull_q_##type##_##ranks(const __grid_constant__ BulkNorm call) { dev::next_may_launch(); norm_pull<N, ranks, true>(call); }

#define NORMS(type, N) \
	ONE_SHOT(type, N, 2) \
	ONE_SHOT(type, N, 4) \
	ONE_SHOT(type, N, 8) \
	TWO_SHOT(type, N, 4) \
	TWO_SHOT(type, N, 8) \
	PULL(type, N, 2) \
	PULL(type, N, 4) \
	KERNEL_OF(512, 2) norm_local_##type(const __grid_constant__ Norm call) { norm_local<N, false>(call); } \
	KERNEL_OF(512, 2) norm_local_q_##type(const __grid_constant__ Norm call) { norm_local<N, true>(call); }

NORMS(bf16, BF16)
NORMS(f16, F16)
