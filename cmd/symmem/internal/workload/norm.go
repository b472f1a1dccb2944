package workload

import (
	"bytes"
	"errors"
	"fmt"

	"symmem"
	"symmem/driver"
	"symmem/driver/formula"
)

// Norm is an AllReduceRMSNorm or a ReduceScatterRMSNorm on one rank, with its expected outputs. The
// call adds up tensors of all ranks and a residual, and normalizes the rows of the result.
type Norm struct {
	*formula.NormCase
	Args    symmem.NormArgs // set by Place
	outputs []normOutput    // the tensors that the norm writes; set by Place
}

// normOutput is a tensor that the norm writes.
type normOutput struct {
	name        string // for texts
	memory      symmem.Memory
	want        []byte
	got         []byte // made by Read
	elementSize int    // in bytes
}

// Sizes of elements in bytes.
const (
	elementBytes   = 2 // of a 16-bit float
	quantizedBytes = 1
	scaleBytes     = 4
)

// Place sets Args to tensors in three buffers: one for the input, one for the output, and one for
// the residual, the weights, the quantized output and the scales. No buffer needs more than
// 8*Rows*Hidden bytes, except for the input of a ReduceScatterRMSNorm.
func (n *Norm) Place(input, output, others symmem.Memory) error {
	n.Args = symmem.NormArgs{
		Type: n.DataType, Rows: n.Rows, Hidden: n.Hidden, Epsilon: n.Epsilon,
		WeightBias: n.WeightBias, Quant: n.Quant, ScaleStrides: n.ScaleStrides,
	}
	a := &n.Args
	ownBytes := elementBytes * n.Rows * n.Hidden // size of this rank's rows
	var inputErr, outputErr, residualErr, weightErr, quantizedErr, scalesErr error
	a.Input, inputErr = input.Slice(0, elementBytes*int64(len(n.Inputs[0])))
	a.Output, outputErr = output.Slice(0, ownBytes)
	if n.InPlace {
		// NormCase.Rank is 0 in an AllReduceRMSNorm.
		a.Output, outputErr = a.Input.Slice(int64(n.Rank)*ownBytes, ownBytes)
	}

	used := int64(0) // bytes of others
	allocate := func(size int64) (symmem.Memory, error) {
		m, err := others.Slice(used, size)
		used += (size + driver.NormAlign - 1) / driver.NormAlign * driver.NormAlign // round up
		return m, err
	}
	a.Residual, residualErr = allocate(ownBytes)
	a.Weight, weightErr = allocate(elementBytes * n.Hidden)
	if n.Quant != driver.QuantNone {
		a.Quantized, quantizedErr = allocate(quantizedBytes * n.Rows * n.Hidden)
		a.Scales, scalesErr = allocate(scaleBytes * int64(len(n.Want.Scales)))
	}

	if n.OnlyQuantized {
		a.Output = symmem.Memory{}
	}

	n.setOutputs()
	return errors.Join(inputErr, outputErr, residualErr, weightErr, quantizedErr, scalesErr)
}

// setOutputs sets n.outputs to the tensors in Args that the norm writes.
func (n *Norm) setOutputs() {
	n.outputs = []normOutput{{
		name: "residual", memory: n.Args.Residual, want: formula.Bytes(n.Want.Residual),
		elementSize: elementBytes,
	}}
	if n.Quant != driver.QuantNone {
		quantized := normOutput{
			name: "quantized output", memory: n.Args.Quantized, want: n.Want.Quantized,
			elementSize: quantizedBytes,
		}
		scales := normOutput{
			name: "scales", memory: n.Args.Scales, want: formula.Bytes(n.Want.Scales),
			elementSize: scaleBytes,
		}
		n.outputs = append(n.outputs, quantized, scales)
	}

	if !n.OnlyQuantized {
		n.outputs = append(n.outputs, normOutput{
			name: "output", memory: n.Args.Output, want: formula.Bytes(n.Want.Output),
			elementSize: elementBytes,
		})
	}
}

// Fill queues copies of the data to the tensors that the norm reads. rank is this rank's number in
// the group.
func (n *Norm) Fill(rank int, s *symmem.Stream) error {
	a := &n.Args
	errs := []error{
		s.Copy(a.Input, symmem.Host(n.Inputs[rank])),
		s.Copy(a.Residual, symmem.Host(n.ResidualBefore)),
		s.Copy(a.Weight, symmem.Host(n.Weights)),
	}
	if n.Quant != driver.QuantNone {
		// Some kinds of quantization read the scales. Others overwrite them.
		errs = append(errs, s.Copy(a.Scales, symmem.Host(n.ScalesBefore())))
	}

	return errors.Join(errs...)
}

// Read queues copies of the outputs. CountWrong may be called after the next Synchronize of s.
func (n *Norm) Read(s *symmem.Stream) error {
	for i := range n.outputs {
		o := &n.outputs[i]
		o.got = make([]byte, len(o.want))
		if err := s.Copy(symmem.Host(o.got), o.memory); err != nil {
			return fmt.Errorf("reading the %s of a norm: %w", o.name, err)
		}
	}

	return nil
}

// Bytes returns the total size of the outputs.
func (n *Norm) Bytes() (sum int64) {
	for i := range n.outputs {
		sum += int64(len(n.outputs[i].want))
	}

	return sum
}

// CountWrong returns the number of wrong elements in the copies that Read has made. first describes
// the first wrong element. It is "" if there is none.
func (n *Norm) CountWrong() (wrongCount int64, first string) {
	for _, o := range n.outputs {
		for i := 0; i < len(o.want); i += o.elementSize {
			got := o.got[i : i+o.elementSize]
			want := o.want[i : i+o.elementSize]
			if bytes.Equal(got, want) {
				continue
			}

			wrongCount++
			if wrongCount == 1 {
				first = fmt.Sprintf("at index %d of the %s: %x instead of %x", i/o.elementSize, o.name,
					got, want)
			}
		}
	}

	return wrongCount, first
}
