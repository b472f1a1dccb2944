package driver

// Norm holds the arguments of AllReduceRMSNorm in addition to those of a Call. The operation adds
// the sum of all ranks' input rows to a residual, which every rank keeps, divides each row of the
// result by the root of the mean of its squares, and multiplies it by the weights.
//
// The Call has Count Rows*Hidden, DataType BFloat16, ReduceOp Sum and Path PathDirect. Send is the
// input and Recv the output, which may be the same memory. Both lie in windows if the rows do not
// fit into exchange memory, because the all-reduce then reads the peers' buffers. There are two
// kernels: an all-reduce into Recv, and one that adds the residual and normalizes; a single fused
// kernel was slower. The second kernel writes nothing on a rank whose all-reduce has failed.
// Residual (Rows*Hidden elements) and Weight (Hidden elements) must not overlap other buffers. All
// addresses are multiples of NormAlign.
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

// Spans returns the number of bytes that a norm covers in its residual and its weight: none if it
// has no rows, or is nil.
func (n *Norm) Spans() (residual, weight int64) {
	if n == nil || n.Rows == 0 {
		return 0, 0
	}
	size := int64(BFloat16.Size())
	return n.Rows * n.Hidden * size, n.Hidden * size
}

// validate refuses what no backend could do.
func (n *Norm) validate(c *Call) error {
	switch {
	case c.DataType != BFloat16 || c.ReduceOp != Sum:
		return invalid("%v of %v with %v", c.Operation, c.DataType, c.ReduceOp)
	case n.Hidden < NormUnit || n.Hidden > MaxHidden || n.Hidden%NormUnit != 0:
		return invalid("rows of %d elements are no multiple of %d up to %d", n.Hidden, NormUnit,
			MaxHidden)
	case n.Rows < 0 || n.Rows > MaxCount/n.Hidden || n.Rows*n.Hidden != c.Count:
		return invalid("%d rows of %d elements are not %d", n.Rows, n.Hidden, c.Count)
	case !(n.Epsilon >= 0 && n.Epsilon <= maxEpsilon):
		return invalid("epsilon %g is not between 0 and %g", n.Epsilon, float32(maxEpsilon))
	case n.Rows > 0 && (c.Send|c.Recv|n.Residual|n.Weight)%NormAlign != 0:
		return invalid("a buffer is not aligned to %d bytes", NormAlign)
	}
	rows, row := n.Spans()
	switch {
	case overlap(n.Residual, rows, n.Weight, row):
		return invalid("residual and weight overlap")
	case overlap(n.Residual, rows, c.Send, rows) || overlap(n.Residual, rows, c.Recv, rows):
		return invalid("the residual overlaps the input or the output")
	case overlap(n.Weight, row, c.Send, rows) || overlap(n.Weight, row, c.Recv, rows):
		return invalid("the weight overlaps the input or the output")
	}
	return nil
}

// maxEpsilon is more than any model adds.
const maxEpsilon = 1
