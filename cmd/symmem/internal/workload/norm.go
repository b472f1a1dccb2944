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
	outputs []normOutput
}

type normOutput struct {
	name        string
	memory      symmem.Memory
	want        []byte
	got         []byte // made by Read
	elementSize int
}

// Place sets Args to tensors in three buffers: the input, the output and the other tensors. No
// buffer needs more than 8*Rows*Hidden bytes, except for the input of a ReduceScatterRMSNorm.
func (n *Norm) Place(input, output, others symmem.Memory) error {
	n.Args = symmem.NormArgs{
		Type: n.DataType, Rows: n.Rows, Hidden: n.Hidden, Epsilon: n.Epsilon,
		WeightBias: n.WeightBias, Quant: n.Quant, ScaleStrides: n.ScaleStrides,
	}
	a, rowBytes := &n.Args, 2*n.Rows*n.Hidden
	var errs [6]error
	a.Input, errs[0] = input.Slice(0, 2*int64(len(n.Inputs[0])))
	a.Output, errs[1] = output.Slice(0, rowBytes)
	if n.InPlace {
		a.Output, errs[1] = a.Input.Slice(int64(n.Rank)*rowBytes, rowBytes)
	}
	used := int64(0)
	allocate := func(size int64) (symmem.Memory, error) {
		m, err := others.Slice(used, size)
		used += (size + driver.NormAlign - 1) / driver.NormAlign * driver.NormAlign
		return m, err
	}
	a.Residual, errs[2] = allocate(rowBytes)
	a.Weight, errs[3] = allocate(2 * n.Hidden)
	n.outputs = []normOutput{
		{name: "residual", memory: a.Residual, want: formula.Bytes(n.Want.Residual), elementSize: 2},
	}
	if n.Quant != driver.QuantNone {
		a.Quantized, errs[4] = allocate(n.Rows * n.Hidden)
		a.Scales, errs[5] = allocate(4 * int64(len(n.Want.Scales)))
		n.outputs = append(n.outputs,
			normOutput{
				name: "quantized output", memory: a.Quantized, want: n.Want.Quantized, elementSize: 1,
			},
			normOutput{
				name: "scales", memory: a.Scales, want: formula.Bytes(n.Want.Scales), elementSize: 4,
			})
	}
	if n.OnlyQuantized {
		a.Output = symmem.Memory{}
	} else {
		n.outputs = append(n.outputs, normOutput{
			name: "output", memory: a.Output, want: formula.Bytes(n.Want.Output), elementSize: 2,
		})
	}
	return errors.Join(errs[:]...)
}

// Fill queues copies to the input tensors. rank is this rank's number in the group.
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

// Read queues copies of the outputs.
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

// Bytes returns the size of all outputs.
func (n *Norm) Bytes() (sum int64) {
	for i := range n.outputs {
		sum += int64(len(n.outputs[i].want))
	}
	return sum
}

// CountWrong counts the wrong elements in the copies that Read has made, and describes the first
// one.
func (n *Norm) CountWrong() (wrongCount int64, first string) {
	for _, o := range n.outputs {
		for i := 0; i < len(o.want); i += o.elementSize {
			got, want := o.got[i:i+o.elementSize], o.want[i:i+o.elementSize]
			if bytes.Equal(got, want) {
				continue
			}
			if wrongCount++; wrongCount == 1 {
				first = fmt.Sprintf("at index %d of the %s: %x instead of %x", i/o.elementSize, o.name,
					got, want)
			}
		}
	}
	return wrongCount, first
}
