package symmem

import "symmem/driver"

// NormArgs holds the tensors of AllReduceRMSNorm, which are of bfloat16, contiguous, and aligned to
// 16 bytes. They may be any device memory. An input and an output in symmetric memory are
// registered before the call and lie at the same place on all ranks, as for AllReduce; more rows
// than fit into exchange memory (about 7 MiB) need that.
type NormArgs struct {
	// Input and Output are [Rows, Hidden]. They may be one; else they do not overlap.
	Input, Output Memory
	// Residual is [Rows, Hidden], read and written, and equal on all ranks. Weight is [Hidden].
	// Neither overlaps another buffer.
	Residual, Weight Memory
	// Rows may be 0. Hidden is a multiple of 8 up to 16384. Both and Epsilon are equal on all ranks.
	Rows, Hidden int64
	// Epsilon is added to the mean of squares: from 0 to 1.
	Epsilon float32
}

// norm describes the norm for the backend.
func (a *NormArgs) norm() *driver.Norm {
	return &driver.Norm{
		Rows: a.Rows, Hidden: a.Hidden, Epsilon: a.Epsilon,
		Residual: a.Residual.Address(), Weight: a.Weight.Address(),
	}
}
