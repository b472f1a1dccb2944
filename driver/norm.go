package driver

import "fmt"

// Norm is what AllReduceRMSNorm has in addition a Call: the sum of all ranks' rows is added to a
// residual, which all ranks keep, and each row of the result is divided by the root of the mean of
// its squares and multiplied by weights.
//
// The Call's Count is Rows*Hidden, its DataType BFloat16, its ReduceOp Sum and its Path
// PathDirect; Send is the input, Recv the output, which may be the input. It needs no windows.
// It is two kernels, the second of which does what is left after an all-reduce into Recv: measured
// faster than one. The second writes nothing on a rank whose all-reduce has failed.
// Residual, Rows * Hidden elements, and Weight, Hidden elements, overlap nothing. All lie on
// addresses of NormAlign.
type Norm struct {
	// Rows and Hidden are the number of rows and of elements in each, a multiple of NormUnit.
	Rows, Hidden int64
	// Epsilon is added to the mean; it is finite and not negative.
	Epsilon float32
	// Residual is read and written, Weight read.
	Residual, Weight uintptr
}

// The buffers of a Norm lie on addresses of NormAlign bytes; its rows are multiples of NormUnit
// elements, up to MaxHidden.
const (
	NormAlign = 16
	NormUnit  = 8
	MaxHidden = 1 << 14
)

// validate checks what no backend could do.
func (n *Norm) validate(c *Call) error {
	switch {
	case n == nil:
		return fmt.Errorf("%v without a norm: %w", c.Operation, ErrUnsupported)
	case c.Path != PathDirect:
		return fmt.Errorf("%v on the %v path: %w", c.Operation, c.Path, ErrUnsupported)
	case c.DataType != BFloat16 || c.ReduceOp != Sum:
		return fmt.Errorf("%v of %v with %v: %w", c.Operation, c.DataType, c.ReduceOp, ErrUnsupported)
	case n.Hidden < NormUnit || n.Hidden > MaxHidden || n.Hidden%NormUnit != 0:
		return fmt.Errorf("rows of %d elements are no multiple of %d up to %d: %w", n.Hidden, NormUnit,
			MaxHidden, ErrUnsupported)
	case n.Rows < 0 || n.Rows > maxCount/n.Hidden || n.Rows*n.Hidden != c.Count:
		return fmt.Errorf("%d rows of %d elements are not %d", n.Rows, n.Hidden, c.Count)
	case !(n.Epsilon >= 0 && n.Epsilon <= maxEpsilon):
		return fmt.Errorf("epsilon %g is not between 0 and %g", n.Epsilon, float32(maxEpsilon))
	case n.Rows > 0 && (c.Send|c.Recv|n.Residual|n.Weight)%NormAlign != 0:
		return fmt.Errorf("a buffer is not aligned to %d bytes: %w", NormAlign, ErrUnsupported)
	}
	return nil
}

// maxEpsilon is more than any model adds.
const maxEpsilon = 1
