package workload

import (
	"bytes"
	"errors"
	"fmt"

	"symmem"
	"symmem/driver"
	"symmem/driver/formula"
)

// Norm is an AllReduceRMSNorm or a ReduceScatterRMSNorm on one rank, with its expected outputs.
type Norm struct {
	*formula.NormCase
	Args    symmem.NormArgs // set by Place
	outputs []normOutput    // the tensors that the norm writes; set by Place
}

type normOutput struct {
	name        string
	memory      symmem.Memory
	want        []byte
	got         []byte // made by Read
	elementSize int    // in bytes
}

// Place sets Args to tensors in three buffers: one for the input, one for the output, and one for
// the residual, the weights, the quantized output and the scales. No buffer needs more than
// 8*Rows*Hidden bytes, except for the input of a ReduceScatterRMSNorm.
func (n *Norm) Place(input, output, others symmem.Memory) error {
	n.Args = symmem.NormArgs{
		Type: n.DataType, Rows: n.Rows, Hidden: n.Hidden, Epsilon: n.Epsilon,
		WeightBias: n.WeightBias, Quant: n.Quant, ScaleStrides: n.ScaleStrides,
	}
	const elementBytes, quantizedBytes, scaleBytes = 2, 1, 4
	a := &n.Args
	ownBytes := elementBytes * n.Rows * n.Hidden // size of this rank's rows
	var inputErr, outputErr, residualErr, weightErr, quantizedErr, scalesErr error
	a.Input, inputErr = input.Slice(0, elementBytes*int64(len(n.Inputs[0])))
	a.Output, outputErr = output.Slice(0, ownBytes)
	if n.InPlace {
		a.Output, outputErr = a.Input.Slice(int64(n.Rank)*ownBytes, ownBytes)
	}
	used := int64(0) // bytes of others
	allocate := func(size int64) (symmem.Memory, error) {
		m, err := others.Slice(used, size)
		used += (size + driver.NormAlign - 1) / driver.NormAlign * driver.NormAlign
		return m, err
	}
	a.Residual, residualErr = allocate(ownBytes)
	a.Weight, weightErr = allocate(elementBytes * n.Hidden)
	n.outputs = []normOutput{{
		name: "residual", memory: a.Residual, want: formula.Bytes(n.Want.Residual),
		elementSize: elementBytes,
	}}
	if n.Quant != driver.QuantNone {
		a.Quantized, quantizedErr = allocate(quantizedBytes * n.Rows * n.Hidden)
		a.Scales, scalesErr = allocate(scaleBytes * int64(len(n.Want.Scales)))
		n.outputs = append(n.outputs,
			normOutput{
				name: "quantized output", memory: a.Quantized, want: n.Want.Quantized,
				elementSize: quantizedBytes,
			},
			normOutput{
				name: "scales", memory: a.Scales, want: formula.Bytes(n.Want.Scales),
				elementSize: scaleBytes,
			})
	}
	if n.OnlyQuantized {
		a.Output = symmem.Memory{}
	} else {
		n.outputs = append(n.outputs, normOutput{
			name: "output", memory: a.Output, want: formula.Bytes(n.Want.Output),
			elementSize: elementBytes,
		})
	}
	return errors.Join(inputErr, outputErr, residualErr, weightErr, quantizedErr, scalesErr)
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
		errs = append(errs, s.Copy(a.Scales, symmem.Host(n.ScalesBefore())))
	}
	return errors.Join(errs...)
}

// Read queues copies of the outputs, which CountWrong checks.
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

// CountWrong returns the number of wrong elements in the copies that Read has made, and a
// description of the first wrong element, or "".
func (n *Norm) CountWrong() (wrongCount int64, first string) {
	for _, o := range n.outputs {
		for i := 0; i < len(o.want); i += o.elementSize {
			got, want := o.got[i:i+o.elementSize], o.want[i:i+o.elementSize]
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
