package symmem

import (
	"context"
	"fmt"

	"symmem/driver"
)

// A norm scales each row of a matrix. Suppose that two ranks have a matrix of 4 rows. The call
// AllReduceRMSNorm adds up the matrices of both ranks, and each rank gets all 4 normalized rows.
// The call ReduceScatterRMSNorm also adds up the matrices, but rank 0 gets the rows 0 and 1, and
// rank 1 gets the rows 2 and 3. With quantization, a rank also gets the rows as numbers of 8 bits:
// each element is divided by a scale and rounded.

// NormArgs contains the arguments of AllReduceRMSNorm and ReduceScatterRMSNorm. All fields except
// the tensors must be the same on all ranks. Tensors must be contiguous and aligned to 16 bytes.
//
// Peers access the Input and, in an AllReduceRMSNorm, the Output. If these are symmetric memory,
// they must be at the same place on all ranks. On GPUs, they must be symmetric memory if they have
// more than about 7 MiB.
type NormArgs struct {
	// Type is the type of Input, Output, Residual and Weight: BFloat16 or Float16. The zero value
	// selects BFloat16.
	Type DataType
	// Input has the shape [Rows, Hidden] in an AllReduceRMSNorm and [ranks*Rows, Hidden] in a
	// ReduceScatterRMSNorm. Output has the shape [Rows, Hidden]. It may be the rows of Input that
	// this rank normalizes. Otherwise, it must not overlap Input. With Quant, Output is optional: if
	// it is missing, the call may overwrite this rank's rows of Input.
	Input, Output Memory
	// Residual has the shape [Rows, Hidden]. The call updates it. In an AllReduceRMSNorm, it must
	// have the same contents on all ranks. Weight has the shape [Hidden]. Residual and Weight must
	// not overlap another buffer.
	Residual, Weight Memory
	// Rows is the number of rows that this rank normalizes; it can be 0. Hidden is the number of
	// elements of a row: a multiple of 8, at most 16384.
	Rows, Hidden int64
	// Epsilon, from 0 to 1, is added to the mean of the squares.
	Epsilon float32
	// WeightBias, from -1 to 1, is added to each weight. Gemma's norm uses 1.
	WeightBias float32
	// Quant selects how the call also writes Quantized. With QuantNone, it does not.
	Quant Quant
	// Quantized has the shape [Rows, Hidden] and the type float8 (e4m3). It receives the elements
	// of Output, each divided by its scale.
	Quantized Memory
	// Scales contains float32 values and is aligned to 4 bytes. For QuantStatic, every rank
	// provides one value. For the other kinds, the call writes the scale of group g of row r to
	// r*ScaleStrides[0] + g*ScaleStrides[1]. If both strides are 0, the scales are stored row by
	// row without gaps.
	Scales       Memory
	ScaleStrides [2]int64
}

// Quant selects how a norm quantizes its output.
type Quant = driver.Quant

// The kinds of quantization. A computed scale is max(m, 1e-10)/448, where m is the largest
// magnitude of the elements with this scale.
const (
	QuantNone     = driver.QuantNone
	QuantStatic   = driver.QuantStatic   // one given scale
	QuantPerRow   = driver.QuantPerRow   // a computed scale per row
	QuantPerGroup = driver.QuantPerGroup // a computed scale per 128 elements, which divide Hidden
)

// output returns the memory for the output of a rank: Output or, if it is missing, the rank's rows
// of Input. Invalid arguments are reported later, by the validation of the call.
func (a *NormArgs) output(o Operation, rank int) (Memory, error) {
	areArgsValid := a.Type.Valid() && a.Rows >= 0 && a.Hidden >= 0
	switch {
	case a.hasOutput() || a.Quant == QuantNone: // without Quant, a missing Output is an error
		return a.Output, nil
	case areArgsValid && o == driver.ReduceScatterRMSNorm:
		bytes := a.Rows * a.Hidden * int64(a.Type.Size())
		return a.Input.Slice(int64(rank)*bytes, bytes)
	default: // in an AllReduceRMSNorm, the rank has all rows
		return a.Input, nil
	}
}

func (a *NormArgs) hasOutput() bool { return a.Output.Address() != 0 }

// driverNorm converts the arguments for the backend.
func (a *NormArgs) driverNorm() *driver.Norm {
	norm := &driver.Norm{
		Rows: a.Rows, Hidden: a.Hidden, Epsilon: a.Epsilon, WeightBias: a.WeightBias,
		Residual: a.Residual.Address(), Weight: a.Weight.Address(),
		Quant: a.Quant, OnlyQuantized: a.Quant != QuantNone && !a.hasOutput(),
		Quantized: a.Quantized.Address(), Scales: a.Scales.Address(), ScaleStrides: a.ScaleStrides,
	}
	hasNoStrides := norm.ScaleStrides == [2]int64{}
	if norm.Quant.ComputesScales() && hasNoStrides {
		norm.ScaleStrides = norm.DefaultScaleStrides()
	}

	return norm
}

// otherBuffers returns the tensors except Input and Output, in the order of driver.Norm.Spans.
func (a *NormArgs) otherBuffers() [4]Memory {
	return [4]Memory{a.Residual, a.Weight, a.Quantized, a.Scales}
}

// ScaleBytes returns the size in bytes of the memory from the first scale to the last.
func (a *NormArgs) ScaleBytes() int64 {
	const scales = 3 // index of Scales in otherBuffers and in driver.Norm.Spans
	return a.driverNorm().Spans()[scales].Bytes
}

// runNorm queues an AllReduceRMSNorm or a ReduceScatterRMSNorm. If wait is true, it also waits for
// the result.
func runNorm(
	ctx context.Context, g *Group, o Operation, a NormArgs, s *Stream, choice PathChoice, site uint32,
	wait bool,
) error {
	if a.Type == Float32 { // Float32 is the zero value, which selects BFloat16
		a.Type = BFloat16
	}

	recv, err := a.output(o, g.rank)
	if err != nil {
		return fmt.Errorf("%v on group %s: %w", o, g.id, err)
	}

	c := &collective{
		operation: o, dataType: a.Type, reduceOp: Sum, send: a.Input, recv: recv,
		count: a.Rows * a.Hidden, choice: choice, site: site, wait: wait,
	}
	// The group keeps prepared calls. If there is one with equal arguments, it is in this slot.
	slot := c.planSlot(a.Weight.Address())
	kept := g.calls.plans[slot].Load() // may be nil
	c.norm = reuseNorm(kept, &a)
	return g.run(ctx, s, c)
}

// reuseNorm returns a copy of args on the heap. If the kept call has equal arguments, it returns
// those instead, so that repeated calls do not allocate.
func reuseNorm(kept *collective, args *NormArgs) *NormArgs {
	hasEqual := kept != nil && kept.norm != nil && *kept.norm == *args
	if hasEqual {
		return kept.norm
	}

	norm := *args
	return &norm
}
