package driver

import "fmt"

// Norm holds the arguments of AllReduceRMSNorm in addition to those of a Call. The operation adds
// the sum of all ranks' input rows to the residual, and every rank stores the new residual. It then
// multiplies each element by its weight and divides it by the row's root mean square. The result is
// the output. It may also be quantized. Package formula defines the bits of all results.
//
// The Call has Count Rows*Hidden, DataType BFloat16 or Float16, ReduceOp Sum and Path PathDirect.
// Send is the input and Recv the output; they may be the same memory. Both must lie in windows if
// the rows do not fit into exchange memory, because the all-reduce then reads the peers' buffers. A
// rank whose call has failed writes poison.
// All other buffers must not overlap each other, the input or the output. All addresses are
// multiples of NormAlign.
type Norm struct {
	// Rows is the number of rows. Hidden is the number of elements in each row. Hidden is a multiple
	// of NormUnit, or of QuantGroup with QuantPerGroup.
	Rows, Hidden int64
	// Epsilon is added to the mean of the squares. It is finite and not negative.
	Epsilon float32
	// WeightBias is added to each weight. It is finite. Gemma's norm has 1.
	WeightBias float32
	// Residual has Rows*Hidden elements and is read and written. Weight has Hidden elements and is
	// only read.
	Residual, Weight uintptr
	// Quant selects the scales of Quantized.
	Quant Quant
	// OnlyQuantized reports whether the call writes no normalized rows. It may still overwrite Recv.
	OnlyQuantized bool
	// Quantized receives Rows*Hidden elements of 8 bits (e4m3). Scales holds float32 values: one for
	// QuantStatic, which is only read, and those that the call computes otherwise.
	Quantized, Scales uintptr
	// ScaleStrides are the distances between computed scales, in elements: between the scales of
	// neighboring rows, and of neighboring groups of a row. They are 0 if Quant computes none.
	ScaleStrides [2]int64
}

// Quant selects how a norm is quantized.
type Quant uint8

// The kinds of quantization. An element is divided by its scale and rounded.
const (
	// QuantNone quantizes nothing.
	QuantNone Quant = iota
	// QuantStatic uses one given scale for all elements.
	QuantStatic
	// QuantPerRow computes a scale for each row: its largest magnitude over QuantMost.
	QuantPerRow
	// QuantPerGroup computes a scale for each QuantGroup elements of a row.
	QuantPerGroup
)

// String returns the name of a kind of quantization.
func (q Quant) String() string {
	if q > QuantPerGroup {
		return "unknown"
	}
	return [...]string{"none", "static", "per row", "per group"}[q]
}

// Computes reports whether the call computes scales.
func (q Quant) Computes() bool { return q == QuantPerRow || q == QuantPerGroup }

// A Norm's buffers are aligned to NormAlign bytes. Its rows have a multiple of NormUnit elements,
// at most MaxHidden.
const (
	NormAlign = 16
	NormUnit  = 8
	MaxHidden = 1 << 14
)

// QuantGroup is the number of elements of a group with a scale. QuantMost is the largest finite
// e4m3 value. Scales are computed as if the largest magnitude were at least QuantLeast.
const (
	QuantGroup = 128
	QuantMost  = 448
	QuantLeast = 1e-10
)

// Span is a range of memory that a norm uses besides the input and the output.
type Span struct {
	Name    string
	Address uintptr
	Bytes   int64
	Align   uintptr
}

// Spans returns the residual, the weight, the quantized output and its scales. Their sizes are 0 if
// n is nil or has no rows.
func (n *Norm) Spans() [4]Span {
	spans := [4]Span{
		{Name: "residual"}, {Name: "weight"}, {Name: "quantized output"}, {Name: "scales"},
	}
	if n == nil {
		return spans
	}
	const size = 2 // of both types
	for i, address := range []uintptr{n.Residual, n.Weight, n.Quantized, n.Scales} {
		spans[i].Address, spans[i].Align = address, NormAlign
	}
	spans[3].Align = 4
	if n.Rows == 0 {
		return spans
	}
	spans[0].Bytes, spans[1].Bytes = n.Rows*n.Hidden*size, n.Hidden*size
	if n.Quant != QuantNone {
		spans[2].Bytes, spans[3].Bytes = n.Rows*n.Hidden, 4*n.scales()
	}
	return spans
}

// scales returns the extent of the scales in elements.
func (n *Norm) scales() int64 {
	if !n.Quant.Computes() {
		return 1
	}
	return (n.Rows-1)*n.ScaleStrides[0] + (n.groups()-1)*n.ScaleStrides[1] + 1
}

// groups returns the number of scales of a row.
func (n *Norm) groups() int64 {
	if n.Quant == QuantPerGroup {
		return n.Hidden / QuantGroup
	}
	return 1
}

// validate returns an error for arguments that no backend supports.
func (n *Norm) validate(c *Call) error {
	switch {
	case c.DataType != BFloat16 && c.DataType != Float16 || c.ReduceOp != Sum:
		return invalid("%v of %v with %v", c.Operation, c.DataType, c.ReduceOp)
	case n.Hidden < NormUnit || n.Hidden > MaxHidden || n.Hidden%NormUnit != 0:
		return invalid("rows have %d elements, not a multiple of %d up to %d", n.Hidden, NormUnit,
			MaxHidden)
	case n.Rows < 0 || n.Rows > MaxCount/n.Hidden || n.Rows*n.Hidden != c.Count:
		return invalid("%d rows of %d elements do not have %d elements", n.Rows, n.Hidden, c.Count)
	case !(n.Epsilon >= 0 && n.Epsilon <= maxEpsilon):
		return invalid("epsilon %g is not between 0 and %g", n.Epsilon, float32(maxEpsilon))
	case !(n.WeightBias >= -maxBias && n.WeightBias <= maxBias):
		return invalid("weight bias %g is not between -%g and %g", n.WeightBias, float32(maxBias),
			float32(maxBias))
	}
	if err := n.validateQuant(); err != nil {
		return err
	}
	return n.validatePlaces(c)
}

// validateQuant checks the arguments of the quantization.
func (n *Norm) validateQuant() error {
	rowStride, groupStride := n.ScaleStrides[0], n.ScaleStrides[1]
	switch {
	case n.Quant > QuantPerGroup:
		return invalid("kind of quantization %d is unknown", n.Quant)
	case n.Quant == QuantNone && (n.OnlyQuantized || n.Quantized != 0 || n.Scales != 0):
		return invalid("a quantized output or scales without a kind of quantization")
	case n.Quant == QuantPerGroup && n.Hidden%QuantGroup != 0:
		return invalid("rows of %d elements have no whole groups of %d", n.Hidden, QuantGroup)
	case !n.Quant.Computes() && n.ScaleStrides != [2]int64{}:
		return invalid("strides of scales, but the call computes no scales")
	case !n.Quant.Computes() || n.Rows == 0:
		return nil
	case n.Quant == QuantPerRow && groupStride != 0:
		return invalid("rows have one scale, but the stride between groups is %d", groupStride)
	case rowStride < 0 || groupStride < 0 || max(rowStride, groupStride) > maxScaleStride:
		return invalid("strides %d and %d of scales are not between 0 and %d", rowStride, groupStride,
			int64(maxScaleStride))
	case !apart(n.Rows, rowStride, n.groups(), groupStride):
		return invalid("strides %d and %d store several scales in one place", rowStride, groupStride)
	}
	return nil
}

// apart reports whether all elements of a matrix have different places. Either the rows or the
// columns must be apart from each other.
func apart(rows, rowStride, columns, columnStride int64) bool {
	if rows > 1 && rowStride < 1 || columns > 1 && columnStride < 1 {
		return false
	}
	return rows == 1 || columns == 1 || rowStride > (columns-1)*columnStride ||
		columnStride > (rows-1)*rowStride
}

// validatePlaces checks the alignment of the buffers, and that they do not overlap.
func (n *Norm) validatePlaces(c *Call) error {
	if n.Rows == 0 {
		return nil
	}
	if (c.Send|c.Recv)%NormAlign != 0 {
		return invalid("a buffer is not aligned to %d bytes", NormAlign)
	}
	spans := n.Spans()
	rows := spans[0].Bytes
	for i, s := range spans {
		switch {
		case s.Address%s.Align != 0 && s.Bytes > 0:
			return invalid("the %s is not aligned to %d bytes", s.Name, s.Align)
		case overlap(s.Address, s.Bytes, c.Send, rows) || overlap(s.Address, s.Bytes, c.Recv, rows):
			return invalid("the %s overlaps the input or the output", s.Name)
		}
		for _, other := range spans[:i] {
			if overlap(s.Address, s.Bytes, other.Address, other.Bytes) {
				return invalid("%s and %s overlap", other.Name, s.Name)
			}
		}
	}
	return nil
}

// maxEpsilon and maxBias limit Epsilon and WeightBias. No model uses larger values.
const (
	maxEpsilon     = 1
	maxBias        = 1
	maxScaleStride = 1 << 32
)

// DefaultScaleStrides returns the strides of scales that are stored row by row without gaps.
func (n *Norm) DefaultScaleStrides() [2]int64 {
	if n.Quant == QuantPerGroup {
		return [2]int64{n.groups(), 1}
	}
	return [2]int64{1, 0}
}

// Describe returns the arguments that must be equal on all ranks, except for the shape.
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
