package driver

// Norm holds the arguments of AllReduceRMSNorm in addition to those of a Call. The operation adds
// the sum of all ranks' input rows to the residual, and every rank stores the new residual. It then
// divides each row of the new residual by the row's root mean square and multiplies it by the
// weights, which gives the output.
//
// The Call has Count Rows*Hidden, DataType BFloat16, ReduceOp Sum and Path PathDirect. Send is the
// input and Recv the output; they may be the same memory. Both must be in windows if the rows do
// not fit into exchange memory, because the all-reduce then reads the peers' buffers. One kernel
// all-reduces into Recv, and a second one adds the residual and normalizes; a single fused kernel
// was slower. The second kernel writes nothing on a rank whose all-reduce has failed.
//
// Residual (Rows*Hidden elements) and Weight (Hidden elements) must not overlap other buffers. All
// addresses are multiples of NormAlign.
type Norm struct {
	// Rows is the number of rows. Hidden is the number of elements in each row, a multiple of
	// NormUnit.
	Rows, Hidden int64
	// Epsilon is added to the mean of the squares. It is finite and not negative.
	Epsilon float32
	// Residual is read and written. Weight is only read.
	Residual, Weight uintptr
}

// A Norm's buffers are aligned to NormAlign bytes. Its rows have a multiple of NormUnit elements,
// at most MaxHidden.
const (
	NormAlign = 16
	NormUnit  = 8
	MaxHidden = 1 << 14
)

// Spans returns the sizes in bytes of the residual and the weight. They are 0 if n is nil or has no
// rows.
func (n *Norm) Spans() (residual, weight int64) {
	if n == nil || n.Rows == 0 {
		return 0, 0
	}
	size := int64(BFloat16.Size())
	return n.Rows * n.Hidden * size, n.Hidden * size
}

// validate returns an error for arguments that no backend supports.
func (n *Norm) validate(c *Call) error {
	switch {
	case c.DataType != BFloat16 || c.ReduceOp != Sum:
		return invalid("%v of %v with %v", c.Operation, c.DataType, c.ReduceOp)
	case n.Hidden < NormUnit || n.Hidden > MaxHidden || n.Hidden%NormUnit != 0:
		return invalid("rows have %d elements, not a multiple of %d up to %d", n.Hidden, NormUnit,
			MaxHidden)
	case n.Rows < 0 || n.Rows > MaxCount/n.Hidden || n.Rows*n.Hidden != c.Count:
		return invalid("%d rows of %d elements do not have %d elements", n.Rows, n.Hidden, c.Count)
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

// maxEpsilon limits Epsilon, and is larger than any value in use.
const maxEpsilon = 1
