package kernels

import "symmem/internal/cuda"

// Product is one of a layer that answers few sequences at once, of matrices of bfloat16 that are
// stored by rows: the output is sequences x rows, the input sequences x depth, and the weights are
// rows x depth. They lie on addresses of 16.
//
// The kernel may be launched to overlap with those ahead of it in its stream. It loads weights
// before these have ended, so none of them may write the weights; and it fills the GPU while it
// waits, so all-reduces of groups on other streams find no place. It is for streams that are alone
// on a GPU.
type Product struct {
	Weights, Input, Output uintptr
	// Depth is a multiple of 8, and Sequences MaxSequences at most.
	Rows, Depth, Sequences int
}

// MaxSequences is how many sequences a product may have.
const MaxSequences = 8

const (
	// tileRows and tileColumns are what a warp has of the weights at once: src/product.h.
	tileRows    = 8
	tileColumns = 256
	// productWarps is how many warps of products a multiprocessor has registers for.
	productWarps = 16
)

// Kernel is the name of the kernel.
func (p *Product) Kernel() string {
	if p.Sequences <= MaxSequences/2 {
		return "product_bf16_4"
	}
	return "product_bf16_8"
}

// Grid is how to launch it: in one wave on GPUs of compute capability 8.0 and 9.0. A block has
// warps for a whole row, or, if that is too long, for an equal part of it in each pass.
func (p *Product) Grid(multiprocessors int) (blocks, threads int) {
	warps := up(up(p.Depth, tileColumns), p.passes())
	return min(up(p.Rows, tileRows), multiprocessors*(productWarps/warps)), warps * warp
}

func (p *Product) passes() int { return up(up(p.Depth, tileColumns), productWarps) }

// up divides and rounds up.
func up(n, by int) int { return (n + by - 1) / by }

// Params packs struct Product of src/product.h.
func (p *Product) Params() cuda.Params {
	var params cuda.Params
	for _, at := range []uintptr{p.Weights, p.Input, p.Output} {
		params.Address(at)
	}
	for _, n := range []int{p.Rows, p.Depth, p.Sequences, p.passes()} {
		params.Uint32(uint32(n))
	}
	return params
}
