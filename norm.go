package symmem

import "symmem/driver"

// NormArgs contains the arguments of AllReduceRMSNorm. The tensors are contiguous, of type
// bfloat16, and aligned to 16 bytes. They may be in any device memory. If Input and Output are
// symmetric memory, they are registered before the call and must have the same place on all ranks,
// as for AllReduce. They must be symmetric if the rows do not fit into exchange memory (about 7
// MiB).
type NormArgs struct {
	// Input and Output have the shape [Rows, Hidden]. They may be the same memory, but must not
	// overlap otherwise.
	Input, Output Memory
	// Residual has the shape [Rows, Hidden] and is both read and written. It must be equal on all
	// ranks. Weight has the shape [Hidden]. Neither may overlap another buffer.
	Residual, Weight Memory
	// Rows may be 0. Hidden must be a multiple of 8, at most 16384. Rows, Hidden and Epsilon must be
	// equal on all ranks.
	Rows, Hidden int64
	// Epsilon is added to the mean of the squares. It must be between 0 and 1.
	Epsilon float32
}

// norm converts the arguments for the backend.
func (a *NormArgs) norm() *driver.Norm {
	return &driver.Norm{
		Rows: a.Rows, Hidden: a.Hidden, Epsilon: a.Epsilon,
		Residual: a.Residual.Address(), Weight: a.Weight.Address(),
	}
}
