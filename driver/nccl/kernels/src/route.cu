// The kernels of Dispatch and Combine, and of Permute and Unpermute. Those that exchange rows exist for 2 ranks,
// for 4 ranks, and for any number up to 8. With up to 4 ranks, line kernels have blocks of 512 threads, and leave
// space for a small block of another group.
#include <permute.h>
#include <route_line.h>

#define ROUTES(ranks, threads) \
	KERNEL dispatch_##ranks(const __grid_constant__ Route call) { dev::next_may_launch(); dispatch<ranks>(call); } \
	KERNEL combine_##ranks(const __grid_constant__ Route call) { dev::next_may_launch(); combine<ranks>(call); } \
	KERNEL_OF(threads, 1) route_line_dispatch_##ranks(const __grid_constant__ Route call) { dev::next_may_launch(); line_dispatch<ranks>(call); } \
	KERNEL_OF(threads, 1) route_line_combine_##ranks(const __grid_constant__ Route call) { dev::next_may_launch(); line_combine<ranks>(call); }

ROUTES(2, 640)
ROUTES(4, 640)
ROUTES(8, 512)

KERNEL permute_rows(const __grid_constant__ Permute call) { dev::next_may_launch(); permute(call); }
KERNEL unpermute_rows(const __grid_constant__ Permute call) { dev::next_may_launch(); unpermute(call); }
