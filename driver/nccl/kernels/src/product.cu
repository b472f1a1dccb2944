// The products that symmem bench decode measures, for up to 4 and for up to 8 sequences. They have the
// registers for 16 warps on a multiprocessor: what sequences take, weights under way do not get.
#include <product.h>

KERNEL product_bf16_4(const __grid_constant__ Product p) { product<2, 1>(p); }
KERNEL product_bf16_8(const __grid_constant__ Product p) { product<1, 2>(p); }
