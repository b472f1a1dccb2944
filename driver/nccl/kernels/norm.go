package kernels

import (
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
)

// rows chooses a kernel for all-reduce, residual and RMSNorm, whose blocks have whole rows.
func (r *Request) rows() (Launch, error) {
	n := r.Norm
	if n == nil || n.Hidden <= 0 {
		return Launch{}, fmt.Errorf("%w for %v without rows", errNone, r.Operation)
	}
	all := uint32(1)<<r.Ranks - 1
	l := Launch{
		norm: true, bytes: n.Hidden * int64(driver.BFloat16.Size()), sendTo: all, recvFrom: all,
		op: opSum, divisor: 1,
	}
	family, blocks := "norm_one_shot", n.Rows
	if inOne, _ := r.rowLimits(n.Hidden); n.Rows > inOne {
		family, blocks = "norm_two_shot", r.sets(n.Rows)
	}
	if limit := r.RowLimit(n.Hidden); n.Rows > limit {
		return Launch{}, fmt.Errorf("%w for %v of %d rows of %d elements: exchange memory holds %d",
			errNone, r.Operation, n.Rows, n.Hidden, limit)
	}
	// One warp is the one that speaks with the other ranks.
	warps := min(chunks(l.bytes)+1, maxThreads/warp)
	l.Kernel, l.Threads = r.kernel(family), int(warps)*warp
	l.Blocks = max(1, int(min(blocks, int64(min(r.Blocks, maxBlocks)))))
	return l, nil
}

// maxThreads is the size of the largest block.
const maxThreads = 512

// sets is in how many parts rows come that have one row of each rank.
func (r *Request) sets(rows int64) int64 {
	return (rows + int64(r.Ranks) - 1) / int64(r.Ranks)
}

// RowLimit is how many rows of so many elements a call may have.
func (r *Request) RowLimit(hidden int64) int64 {
	inOne, inTwo := r.rowLimits(hidden)
	return max(inOne, inTwo)
}

// rowLimits are those in one step and in two. In one, rows must be few enough for it to be the
// faster way, and fit.
func (r *Request) rowLimits(hidden int64) (inOne, inTwo int64) {
	ranks, bytes := int64(r.Ranks), hidden*int64(driver.BFloat16.Size())
	perRow := ranks * chunks(bytes) * chunkBytes
	quick := min(oneStep, oneStepTotal/(ranks-1)) / bytes
	return min(quick, halfBytes/perRow), halfBytes / 2 / perRow * ranks
}

// Local is what is left to do after an all-reduce of its own, on one GPU: the residual gets the
// sums added, and is normalized. Buffers lie on addresses of 16.
type Local struct {
	driver.Norm
	// Send are the sums, Recv is the output.
	Send, Recv uintptr
}

// LocalKernel is the name of its kernel.
const LocalKernel = "norm_local_bf16"

// Grid is how to launch it.
func (l *Local) Grid() (blocks, threads int) {
	packs := (l.Hidden + driver.NormUnit - 1) / driver.NormUnit
	warps := (packs + warp - 1) / warp
	return int(max(l.Rows, 1)), int(min(warps, maxThreads/warp)) * warp
}

// Params packs struct Local of src/local.h.
func (l *Local) Params() cuda.Params {
	var p cuda.Params
	for _, at := range []uintptr{l.Send, l.Residual, l.Weight, l.Recv} {
		p.Address(at)
	}
	packNorm(&p, &l.Norm)
	return p
}
