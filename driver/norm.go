package driver

import "fmt"

// Norm holds the arguments of AllReduceRMSNorm and ReduceScatterRMSNorm in addition to those of a
// Call. The operation first adds the sum of all ranks' inputs to the residual. The output is the
// new residual, with each element multiplied by its weight and divided by the root mean square of
// its row. The output can be quantized. Package formula defines the bits of all results.
//
// In a ReduceScatterRMSNorm, Send has the rows of all ranks, in the order of ranks, and each rank
// gets the results for its rows. A row gets the same bits in both operations.
//
// In the Call, Count is Rows*Hidden, DataType is BFloat16 or Float16, and ReduceOp is Sum. The call
// may be in place. The other buffers must not overlap one another, Send or Recv. On the direct
// path, buffers must be in windows if the rows do not fit into the exchange memory: Send and Recv
// of an AllReduceRMSNorm, or Send of a ReduceScatterRMSNorm.
//
// If a rank's call fails on the direct path, its outputs are filled with bytes of value 0xff. On
// other paths, its residual and quantized output are unchanged.
type Norm struct {
	// Rows is the number of rows of the output. Hidden is the number of elements per row, a multiple
	// of NormUnit and, for QuantPerGroup, of QuantGroup.
	Rows, Hidden int64
	// Epsilon is added to the mean of the squares, and WeightBias to each weight.
	Epsilon    float32
	WeightBias float32
	// Residual points to Rows*Hidden elements, which are overwritten, and Weight to Hidden elements.
	Residual, Weight uintptr
	Quant            Quant
	// OnlyQuantized omits the output that is not quantized. Recv is then undefined after the call.
	OnlyQuantized bool
	// Quantized points to Rows*Hidden bytes, which receive e4m3 elements. Scales points to float32
	// values, which QuantStatic reads and the other kinds write.
	Quantized, Scales uintptr
	// ScaleStrides holds the distances, in elements, between the scales of neighboring rows and
	// groups.
	ScaleStrides [2]int64
}

// Quant selects the scales by which a norm's output is divided before it is rounded.
type Quant uint8

// The kinds of quantization.
const (
	QuantNone Quant = iota
	// QuantStatic uses one given scale for all elements.
	QuantStatic
	// QuantPerRow computes one scale per row: its largest magnitude divided by MaxE4M3.
	QuantPerRow
	// QuantPerGroup computes one scale per QuantGroup elements of a row.
	QuantPerGroup
)

// String returns the name of the kind.
func (q Quant) String() string {
	if q > QuantPerGroup {
		return "unknown"
	}
	return [...]string{"none", "static", "per row", "per group"}[q]
}

// ComputesScales reports whether calls compute the scales. Otherwise, they are an input.
func (q Quant) ComputesScales() bool { return q == QuantPerRow || q == QuantPerGroup }

// NormAlign is the alignment of a Norm's buffers in bytes. A row has a multiple of NormUnit
// elements, at most MaxHidden.
const (
	NormAlign = 16
	NormUnit  = 8
	MaxHidden = 1 << 14
)

// QuantGroup is the number of elements that share a scale in QuantPerGroup. MaxE4M3 is the largest
// finite e4m3 value. MinMagnitude is the smallest magnitude used for a scale.
const (
	QuantGroup   = 128
	MaxE4M3      = 448
	MinMagnitude = 1e-10
)

// Span is a range of memory that a call uses in addition to Send and Recv.
type Span struct {
	Name    string
	Address uintptr
	Bytes   int64
	Align   uintptr // in bytes
}

// Spans returns the residual, the weight, the quantized output and the scales. They are empty if n
// is nil or has no rows.
func (n *Norm) Spans() [4]Span {
	spans := [4]Span{
		{Name: "residual"}, {Name: "weight"}, {Name: "quantized output"}, {Name: "scales"},
	}
	if n == nil {
		return spans
	}
	const size = 2 // bytes per element
	for i, address := range []uintptr{n.Residual, n.Weight, n.Quantized, n.Scales} {
		spans[i].Address, spans[i].Align = address, NormAlign
	}
	spans[3].Align = 4
	if n.Rows == 0 {
		return spans
	}
	spans[0].Bytes, spans[1].Bytes = n.Rows*n.Hidden*size, n.Hidden*size
	if n.Quant != QuantNone {
		spans[2].Bytes, spans[3].Bytes = n.Rows*n.Hidden, 4*n.scaleArrayLength()
	}
	return spans
}

func (n *Norm) scaleArrayLength() int64 {
	if !n.Quant.ComputesScales() {
		return 1
	}
	return (n.Rows-1)*n.ScaleStrides[0] + (n.groupsPerRow()-1)*n.ScaleStrides[1] + 1
}

func (n *Norm) groupsPerRow() int64 {
	if n.Quant == QuantPerGroup {
		return n.Hidden / QuantGroup
	}
	return 1
}

func (n *Norm) validate(c *Call, ranks, rank int) error {
	switch {
	case c.DataType != BFloat16 && c.DataType != Float16 || c.ReduceOp != Sum:
		return invalidError("%v does not support %v with reduction %v", c.Operation, c.DataType,
			c.ReduceOp)
	case n.Hidden < NormUnit || n.Hidden > MaxHidden || n.Hidden%NormUnit != 0:
		return invalidError("rows have %d elements; want a multiple of %d up to %d", n.Hidden,
			NormUnit, MaxHidden)
	case n.Rows < 0 || n.Rows > MaxCount/n.Hidden || n.Rows*n.Hidden != c.Count:
		return invalidError("count %d does not equal %d rows of %d elements", c.Count, n.Rows, n.Hidden)
	case !(n.Epsilon >= 0 && n.Epsilon <= maxEpsilon):
		return invalidError("epsilon %g is not between 0 and %g", n.Epsilon, float32(maxEpsilon))
	case !(n.WeightBias >= -maxWeightBias && n.WeightBias <= maxWeightBias):
		return invalidError("weight bias %g is not between -%g and %g", n.WeightBias,
			float32(maxWeightBias), float32(maxWeightBias))
	}
	if err := n.validateQuant(); err != nil {
		return err
	}
	return n.validateBuffers(c, ranks, rank)
}

func (n *Norm) validateQuant() error {
	rowStride, groupStride := n.ScaleStrides[0], n.ScaleStrides[1]
	switch {
	case n.Quant > QuantPerGroup:
		return invalidError("unknown kind of quantization %d", n.Quant)
	case n.Quant == QuantNone && (n.OnlyQuantized || n.Quantized != 0 || n.Scales != 0):
		return invalidError("a quantized output or scales are set, but no kind of quantization")
	case n.Quant == QuantPerGroup && n.Hidden%QuantGroup != 0:
		return invalidError("rows of %d elements cannot be divided into groups of %d", n.Hidden,
			QuantGroup)
	case !n.Quant.ComputesScales() && n.ScaleStrides != [2]int64{}:
		return invalidError("scale strides are set, but the call computes no scales")
	case !n.Quant.ComputesScales() || n.Rows == 0:
		return nil
	case n.Quant == QuantPerRow && groupStride != 0:
		return invalidError("rows have one scale, but the stride between groups is %d", groupStride)
	case rowStride < 0 || groupStride < 0 || max(rowStride, groupStride) > maxScaleStride:
		return invalidError("scale strides %d and %d are not between 0 and %d", rowStride,
			groupStride,
			int64(maxScaleStride))
	case !isDisjoint(n.Rows, rowStride, n.groupsPerRow(), groupStride):
		return invalidError("scale strides %d and %d make scales overlap", rowStride, groupStride)
	}
	return nil
}

// isDisjoint reports whether the elements of a matrix with the given strides do not overlap. It
// may return false for disjoint layouts in which rows and columns are interleaved.
func isDisjoint(rows, rowStride, columns, columnStride int64) bool {
	if rows > 1 && rowStride < 1 || columns > 1 && columnStride < 1 {
		return false
	}
	if rows == 1 || columns == 1 {
		return true
	}
	return rowStride > (columns-1)*columnStride || columnStride > (rows-1)*rowStride
}

func (n *Norm) validateBuffers(c *Call, ranks, rank int) error {
	if n.Rows == 0 {
		return nil
	}
	if (c.Send|c.Recv)%NormAlign != 0 {
		return invalidError("a buffer is not aligned to %d bytes", NormAlign)
	}
	spans := n.Spans()
	sendBytes, recvBytes := c.Spans(ranks, rank)
	for i, s := range spans {
		switch {
		case s.Address%s.Align != 0 && s.Bytes > 0:
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

// No model uses a larger epsilon or weight bias.
const (
	maxEpsilon     = 1
	maxWeightBias  = 1
	maxScaleStride = 1 << 32
)

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
