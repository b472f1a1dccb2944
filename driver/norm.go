package driver

import "fmt"

// Norm holds the arguments of AllReduceRMSNorm and ReduceScatterRMSNorm in addition to those of a
// Call. The operation first adds the inputs of all ranks and the residual. The sum is the new
// residual. The output is the new residual divided by the root mean square of its row, and
// multiplied by the weights. It can be quantized. Package formula defines the bits of all results.
//
// In a ReduceScatterRMSNorm, Send has the rows of all ranks, in the order of ranks, and each rank
// gets the results for its rows. A row gets the same bits in both operations.
//
// In the Call, Count is Rows*Hidden, DataType is BFloat16 or Float16, and ReduceOp is Sum. The call
// may be in place. The other buffers must not overlap one another, Send or Recv.
//
// The direct path copies small inputs through a fixed exchange memory. If the rows do not fit into
// it, buffers must be in windows (memory that all ranks have registered): Send and Recv of an
// AllReduceRMSNorm, or Send of a ReduceScatterRMSNorm.
//
// If a rank's call fails on the direct path, its outputs are filled with bytes of value 0xff. On
// other paths, its residual and quantized output are unchanged.
type Norm struct {
	// Rows is the number of rows of the output on this rank. It may be 0.
	Rows int64
	// Hidden is the number of elements per row: a multiple of NormUnit. For QuantPerGroup, it is also
	// a multiple of QuantGroup.
	Hidden int64
	// Epsilon is added to the mean of the squares.
	Epsilon float32
	// WeightBias is added to each weight.
	WeightBias float32
	// Residual is the address of Rows*Hidden elements, which are overwritten.
	Residual uintptr
	// Weight is the address of Hidden elements.
	Weight uintptr
	Quant  Quant
	// OnlyQuantized omits the output that is not quantized. Recv is then undefined after the call.
	OnlyQuantized bool
	// Quantized is the address of Rows*Hidden bytes, which receive elements of type e4m3 (an 8-bit
	// float). It is 0 for QuantNone.
	Quantized uintptr
	// Scales is the address of float32 values. QuantStatic reads one value. QuantPerRow and
	// QuantPerGroup write values at the distances in ScaleStrides. It is 0 for QuantNone.
	Scales uintptr
	// ScaleStrides holds the distances, in elements, between the scales of neighboring rows, and
	// between those of neighboring groups of a row.
	ScaleStrides [2]int64
}

// Quant is a kind of quantization: how a norm's output is rounded to 8-bit floats. Each element is
// first divided by a scale, which the kind selects.
type Quant uint8

// The kinds of quantization.
const (
	QuantNone Quant = iota
	// QuantStatic uses one given scale for all elements.
	QuantStatic
	// QuantPerRow computes one scale per row: the row's largest magnitude divided by MaxE4M3.
	QuantPerRow
	// QuantPerGroup computes one scale in the same way for each QuantGroup elements of a row.
	QuantPerGroup
)

// String returns the name of the kind.
func (q Quant) String() string {
	if q > QuantPerGroup {
		return "unknown"
	}

	return [...]string{"none", "static", "per row", "per group"}[q]
}

// ComputesScales reports whether calls compute the scales. With QuantStatic, the scale is an input.
// With QuantNone, there is no scale.
func (q Quant) ComputesScales() bool { return q == QuantPerRow || q == QuantPerGroup }

// Limits of the sizes of a Norm.
const (
	NormAlign = 16      // alignment of the buffers in bytes, except Scales
	NormUnit  = 8       // a row has a multiple of NormUnit elements: 16 bytes
	MaxHidden = 1 << 14 // maximum number of elements of a row
)

// Constants of quantization.
const (
	QuantGroup   = 128   // elements that share a scale in QuantPerGroup
	MaxE4M3      = 448   // largest finite value of type e4m3
	MinMagnitude = 1e-10 // used for a scale if all elements are smaller, so that it is not 0
)

// Limits of arguments. No model uses a larger epsilon, weight bias or stride.
const (
	maxEpsilon     = 1
	maxWeightBias  = 1
	maxScaleStride = 1 << 32
)

// scaleBytes is the size and alignment of a float32 scale.
const scaleBytes = 4

// Span is a range of memory that a call uses in addition to Send and Recv.
type Span struct {
	Name    string // for error texts
	Address uintptr
	Bytes   int64
	Align   uintptr // in bytes
}

// Spans returns the residual, the weight, the quantized output and the scales. The spans have no
// bytes if n is nil or has no rows.
func (n *Norm) Spans() [4]Span {
	const residual, weight, quantized, scales = 0, 1, 2, 3 // indexes of the spans
	spans := [4]Span{
		residual: {Name: "residual"}, weight: {Name: "weight"}, quantized: {Name: "quantized output"},
		scales: {Name: "scales"},
	}
	if n == nil {
		return spans
	}

	for i, address := range [4]uintptr{n.Residual, n.Weight, n.Quantized, n.Scales} {
		spans[i].Address = address
		spans[i].Align = NormAlign
	}

	spans[scales].Align = scaleBytes
	if n.Rows == 0 {
		return spans
	}

	const elementBytes = 2 // of BFloat16 and Float16
	spans[residual].Bytes = n.Rows * n.Hidden * elementBytes
	spans[weight].Bytes = n.Hidden * elementBytes
	if n.Quant != QuantNone {
		spans[quantized].Bytes = n.Rows * n.Hidden
		spans[scales].Bytes = n.scaleArrayLength() * scaleBytes
	}

	return spans
}

// scaleArrayLength returns the number of elements from the first to the last scale.
func (n *Norm) scaleArrayLength() int64 {
	if !n.Quant.ComputesScales() {
		return 1
	}

	lastRow := (n.Rows - 1) * n.ScaleStrides[0]
	lastGroup := (n.groupsPerRow() - 1) * n.ScaleStrides[1]
	return lastRow + lastGroup + 1
}

// groupsPerRow returns the number of scales of a row.
func (n *Norm) groupsPerRow() int64 {
	if n.Quant == QuantPerGroup {
		return n.Hidden / QuantGroup
	}

	return 1
}

// validate returns an error if no backend can run call c with the arguments in n.
func (n *Norm) validate(c *Call, ranks, rank int) error {
	isSupportedType := c.DataType == BFloat16 || c.DataType == Float16
	// The negations also hold for NaN.
	isValidEpsilon := n.Epsilon >= 0 && n.Epsilon <= maxEpsilon
	isValidBias := n.WeightBias >= -maxWeightBias && n.WeightBias <= maxWeightBias
	switch {
	case !isSupportedType || c.ReduceOp != Sum:
		return invalidError("%v does not support %v with reduction %v", c.Operation, c.DataType,
			c.ReduceOp)
	case n.Hidden < NormUnit || n.Hidden > MaxHidden || n.Hidden%NormUnit != 0:
		return invalidError("rows have %d elements; want a multiple of %d up to %d", n.Hidden,
			NormUnit, MaxHidden)
	case n.Rows < 0 || n.Rows > MaxCount/n.Hidden, // so that the product does not overflow
		n.Rows*n.Hidden != c.Count:
		return invalidError("count %d does not equal %d rows of %d elements", c.Count, n.Rows, n.Hidden)
	case !isValidEpsilon:
		return invalidError("epsilon %g is not between 0 and %g", n.Epsilon, float32(maxEpsilon))
	case !isValidBias:
		return invalidError("weight bias %g is not between -%g and %g", n.WeightBias,
			float32(maxWeightBias), float32(maxWeightBias))
	}

	if err := n.validateQuant(); err != nil {
		return err
	}

	return n.validateBuffers(c, ranks, rank)
}

func (n *Norm) validateQuant() error {
	hasQuantized := n.OnlyQuantized || n.Quantized != 0 || n.Scales != 0
	switch {
	case n.Quant > QuantPerGroup:
		return invalidError("unknown kind of quantization %d", n.Quant)
	case n.Quant == QuantNone && hasQuantized:
		return invalidError("a quantized output or scales are set, but no kind of quantization")
	case n.Quant == QuantPerGroup && n.Hidden%QuantGroup != 0:
		return invalidError("rows of %d elements cannot be divided into groups of %d", n.Hidden,
			QuantGroup)
	}

	return n.validateStrides()
}

func (n *Norm) validateStrides() error {
	if !n.Quant.ComputesScales() {
		if n.ScaleStrides != [2]int64{} {
			return invalidError("scale strides are set, but the call computes no scales")
		}

		return nil
	}

	if n.Rows == 0 {
		return nil
	}

	rowStride, groupStride := n.ScaleStrides[0], n.ScaleStrides[1]
	switch {
	case n.Quant == QuantPerRow && groupStride != 0:
		return invalidError("rows have one scale, but the stride between groups is %d", groupStride)
	case min(rowStride, groupStride) < 0 || max(rowStride, groupStride) > maxScaleStride:
		return invalidError("scale strides %d and %d are not between 0 and %d", rowStride,
			groupStride, int64(maxScaleStride))
	case rowStride > 0 && n.Rows-1 > MaxCount/rowStride: // their size could overflow
		return invalidError("scales of %d rows at a stride of %d extend over more than %d elements",
			n.Rows, rowStride, int64(MaxCount))
	case !isDisjoint(n.Rows, rowStride, n.groupsPerRow(), groupStride):
		return invalidError("scale strides %d and %d make scales overlap", rowStride, groupStride)
	}

	return nil
}

// isDisjoint reports whether the elements of a matrix with the given strides have different
// addresses. It requires that each row ends before the next one begins, or that each column does.
// It thus returns false for other layouts, even if they are disjoint.
func isDisjoint(rows, rowStride, columns, columnStride int64) bool {
	hasOverlappingRows := rows > 1 && rowStride < 1
	hasOverlappingColumns := columns > 1 && columnStride < 1
	if hasOverlappingRows || hasOverlappingColumns {
		return false
	}

	if rows == 1 || columns == 1 {
		return true
	}

	return rowStride > (columns-1)*columnStride || columnStride > (rows-1)*rowStride
}

// validateBuffers checks the alignment of all buffers, and that those of n overlap no other.
func (n *Norm) validateBuffers(c *Call, ranks, rank int) error {
	if n.Rows == 0 {
		return nil
	}

	if (c.Send|c.Recv)%NormAlign != 0 { // one of them is not aligned
		return invalidError("a buffer is not aligned to %d bytes", NormAlign)
	}

	spans := n.Spans()
	sendBytes, recvBytes := c.Spans(ranks, rank)
	for i, s := range spans {
		switch {
		case s.Bytes > 0 && s.Address%s.Align != 0:
			return invalidError("the %s is not aligned to %d bytes", s.Name, s.Align)
		case rangesOverlap(s.Address, s.Bytes, c.Send, sendBytes),
			rangesOverlap(s.Address, s.Bytes, c.Recv, recvBytes):
			return invalidError("the %s overlaps the input or the output", s.Name)
		}

		for _, other := range spans[:i] {
			if rangesOverlap(s.Address, s.Bytes, other.Address, other.Bytes) {
				return invalidError("%s and %s overlap", other.Name, s.Name)
			}
		}
	}

	return nil
}

// DefaultScaleStrides returns the strides of scales that are stored row by row.
func (n *Norm) DefaultScaleStrides() [2]int64 {
	if n.Quant == QuantPerGroup {
		return [2]int64{n.groupsPerRow(), 1}
	}

	return [2]int64{1, 0}
}

// Describe returns a description of the arguments that must be the same on all ranks, except Rows
// and Hidden.
func (n *Norm) Describe() string {
	text := fmt.Sprintf("epsilon %g", n.Epsilon)
	if n.WeightBias != 0 {
		text += fmt.Sprintf(", weight bias %g", n.WeightBias)
	}

	if n.Quant != QuantNone {
		text += fmt.Sprintf(", scales %v", n.Quant)
	}

	if n.OnlyQuantized {
		text += ", only quantized"
	}

	return text
}
