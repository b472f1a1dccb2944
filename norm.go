package symmem

import (
	"context"
	"fmt"

	"symmem/driver"
)

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
	// ReduceScatterRMSNorm. Output has the shape [Rows, Hidden]. It must be the rows of Input that
	// this rank normalizes, or it must not overlap Input. With Quant, Output is optional. If Output
	// is missing, the call may overwrite this rank's rows of Input.
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
	// Quant is QuantNone or selects how the call also writes Quantized.
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

// output returns the memory for the output of a rank: Output or, if Output is missing, memory in
// Input. In a ReduceScatterRMSNorm, that is the rank's part of Input.
func (a *NormArgs) output(o Operation, rank int) (Memory, error) {
	hasOutput := a.Output.Address() != 0
	switch {
	case hasOutput || a.Quant == QuantNone: // without Quant, a missing Output is an error
		return a.Output, nil
	case !a.Type.Valid() || a.Rows < 0 || a.Hidden < 0:
		return a.Input, nil // invalid arguments: Validate returns the error
	case o == driver.ReduceScatterRMSNorm:
		bytes := a.Rows * a.Hidden * int64(a.Type.Size())
		return a.Input.Slice(int64(rank)*bytes, bytes)
	default:
		return a.Input, nil
	}
}

func (a *NormArgs) driverNorm() *driver.Norm {
	norm := &driver.Norm{
		Rows: a.Rows, Hidden: a.Hidden, Epsilon: a.Epsilon, WeightBias: a.WeightBias,
		Residual: a.Residual.Address(), Weight: a.Weight.Address(),
		Quant: a.Quant, OnlyQuantized: a.Quant != QuantNone && a.Output.Address() == 0,
		Quantized: a.Quantized.Address(), Scales: a.Scales.Address(), ScaleStrides: a.ScaleStrides,
	}
	hasNoStrides := norm.ScaleStrides == [2]int64{}
	if norm.Quant.ComputesScales() && hasNoStrides {
		norm.ScaleStrides = norm.DefaultScaleStrides()
	}

	return norm
}

// ScaleBytes returns the size in bytes of the memory from the first scale to the last.
func (a *NormArgs) ScaleBytes() int64 {
	const scales = 3 // index of Scales in driver.Norm.Spans, see otherBuffers
	return a.driverNorm().Spans()[scales].Bytes
}

// otherBuffers returns the tensors except Input and Output, in the order of driver.Norm.Spans.
func (a *NormArgs) otherBuffers() [4]Memory {
	return [4]Memory{a.Residual, a.Weight, a.Quantized, a.Scales}
}

// runNorm queues an AllReduceRMSNorm or a ReduceScatterRMSNorm. If wait is true, it also waits for
// the result.
func runNorm(
	ctx context.Context, g *Group, o Operation, a NormArgs, s *Stream, choice PathChoice, site uint32,
	wait bool,
) error {
	if a.Type == Float32 { // the zero value selects BFloat16
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
	slot := c.planSlot(a.Weight.Address()) // where the plan (prepared call) of an equal call is
	c.norm = reuseNorm(g.calls.plans[slot].Load(), &a)
	return g.run(ctx, s, c)
}

// reuseNorm returns a copy of args on the heap. If a cached plan (which may be nil) has equal
// arguments, it returns those instead, so that repeated calls do not allocate.
func reuseNorm(plan *collective, args *NormArgs) *NormArgs {
	if plan != nil && plan.norm != nil && *plan.norm == *args {
		return plan.norm
	}

	norm := *args
	return &norm
}
