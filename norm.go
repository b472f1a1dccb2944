package symmem

import (
	"cmp"
	"context"
	"fmt"

	"symmem/driver"
)

// NormArgs contains the arguments of AllReduceRMSNorm and ReduceScatterRMSNorm. Both add the Inputs
// of all ranks to Residual, and normalize each row of the sum. With AllReduceRMSNorm, every rank
// gets all rows. With ReduceScatterRMSNorm, each rank gets an equal part of the rows. All fields
// except the tensors must be equal on all ranks. Tensors must be contiguous and 16-byte aligned.
//
// Other ranks access Input and, in an AllReduceRMSNorm, Output. If these are registered with the
// group, their segments and offsets must be the same on all ranks. On GPUs, tensors of more than
// about 7 MiB must be registered.
type NormArgs struct {
	// Type is the type of Input, Output, Residual and Weight: BFloat16 (the default) or Float16.
	Type DataType
	// Input has the shape [Rows, Hidden] in an AllReduceRMSNorm and [ranks*Rows, Hidden] in a
	// ReduceScatterRMSNorm.
	Input Memory
	// Output has the shape [Rows, Hidden]. It may be this rank's rows of Input, but must not overlap
	// Input in any other way. Except with QuantNone, Output is optional: without it, the call may
	// overwrite this rank's rows of Input.
	Output Memory
	// Residual has the shape [Rows, Hidden]. In an AllReduceRMSNorm, it must have the same contents on
	// all ranks. Weight has the shape [Hidden]. Neither may overlap another tensor.
	Residual, Weight Memory
	// Rows is the number of rows of Output. It can be 0. Hidden is the number of elements of a row, a
	// multiple of 8 and at most 16384.
	Rows, Hidden int64
	// Epsilon, from 0 to 1, is added to the mean of the squares.
	Epsilon float32
	// WeightBias, from -1 to 1, is added to each weight. Gemma models use 1.
	WeightBias float32
	// Quant selects how Quantized is scaled. With QuantNone, the call does not write Quantized.
	Quant Quant
	// Quantized has the shape [Rows, Hidden] and the type float8 (e4m3). It receives the elements of
	// Output, each divided by its scale.
	Quantized Memory
	// Scales contains float32 values and is aligned to 4 bytes. For QuantStatic, every rank provides
	// one value. For QuantPerRow and QuantPerGroup, the call writes the scale of group g of row r to
	// index r*ScaleStrides[0] + g*ScaleStrides[1]. A group has 128 elements or, for QuantPerRow, is
	// the whole row. If both strides are 0, the scales are contiguous, row by row.
	Scales       Memory
	ScaleStrides [2]int64
}

// Quant selects how a norm quantizes its output.
type Quant = driver.Quant

// The kinds of quantization. A computed scale is max(m, 1e-10)/448, where m is the largest
// magnitude of the scaled elements, and 448 the largest float8.
const (
	QuantNone     = driver.QuantNone
	QuantStatic   = driver.QuantStatic   // one given scale
	QuantPerRow   = driver.QuantPerRow   // a computed scale per row
	QuantPerGroup = driver.QuantPerGroup // a computed scale per 128 elements; 128 divides Hidden
)

// output returns Output or, if an optional Output is missing, the rows of Input that the call may
// overwrite.
func (a *NormArgs) output(o Operation, rank int) (Memory, error) {
	isRequired := a.Quant == QuantNone
	if isRequired || a.hasOutput() {
		return a.Output, nil
	}

	isScattered := o == driver.ReduceScatterRMSNorm
	isInvalid := !a.Type.Valid() || a.Rows < 0 || a.Hidden < 0 // Group.run returns the error
	if !isScattered || isInvalid {
		return a.Input, nil
	}

	partBytes := a.Rows * a.Hidden * int64(a.Type.Size())
	return a.Input.Slice(int64(rank)*partBytes, partBytes)
}

func (a *NormArgs) hasOutput() bool { return a.Output.Address() != 0 }

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

// ScaleBytes returns the bytes from the start of the first scale to the end of the last.
func (a *NormArgs) ScaleBytes() int64 {
	const scalesIndex = 3 // of Scales in driver.Norm.Spans
	return a.driverNorm().Spans()[scalesIndex].Bytes
}

// runNorm queues an AllReduceRMSNorm or a ReduceScatterRMSNorm and, if wait is true, waits for the
// result.
func runNorm(
	ctx context.Context, g *Group, o Operation, a NormArgs, s *Stream, choice PathChoice, site uint32,
	wait bool,
) error {
	a.Type = cmp.Or(a.Type, BFloat16)

	recv, err := a.output(o, g.rank)
	if err != nil {
		return fmt.Errorf("%v on group %s: %w", o, g.id, err)
	}

	c := &collective{
		operation: o, dataType: a.Type, reduceOp: Sum, send: a.Input, recv: recv,
		count: a.Rows * a.Hidden, choice: choice, site: site, wait: wait,
	}
	slot := c.planSlot(a.Weight.Address()) // differs between the layers of a model
	earlier := g.calls.plans[slot].Load()  // may be nil or a different call
	c.norm = reuseNorm(earlier, &a)
	return g.run(ctx, s, c)
}

// reuseNorm returns the arguments of the earlier call if they equal args, so that repeated calls do
// not allocate. Otherwise, it copies args.
func reuseNorm(earlier *collective, args *NormArgs) *NormArgs {
	isRepeated := earlier != nil && earlier.norm != nil && *earlier.norm == *args
	if isRepeated {
		return earlier.norm
	}

	norm := *args
	return &norm
}
