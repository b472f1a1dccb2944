package workload

import (
	"bytes"
	"errors"
	"fmt"

	"symmem"
	"symmem/driver"
	"symmem/driver/formula"
)

// Norm prepares and checks an AllReduceRMSNorm or a ReduceScatterRMSNorm on this rank. Such a call
// adds the inputs of all ranks to a residual, and also outputs the normalized rows of the new
// residual, optionally quantized to one byte per element.
//
// Callers use Place and Fill, make the call with Args, and use Read and CountWrong.
type Norm struct {
	*formula.NormCase                 // the values of all tensors
	Args              symmem.NormArgs // set by Place
	outputs           []normOutput    // set by Place
}

// normOutput is a tensor that the call writes.
type normOutput struct {
	name        string
	memory      symmem.Memory
	elementSize int    // in bytes
	want        []byte // right content
	got         []byte // actual content, set by Read
}

// Sizes of elements in bytes.
const (
	float16Bytes   = 2 // also of a bfloat16
	quantizedBytes = 1
	scaleBytes     = 4 // float32
)

// MaxNormBytes times Rows*Hidden bytes suffice for each buffer of Place. Only the input of a
// ReduceScatterRMSNorm may need more: 2*Rows*Hidden bytes for each rank.
const MaxNormBytes = 8

// Place sets Args to tensors in three buffers. Buffer others holds the residual, the weights, the
// quantized output and its scales.
func (n *Norm) Place(input, output, others symmem.Memory) error {
	n.Args = symmem.NormArgs{
		Type: n.DataType, Rows: n.Rows, Hidden: n.Hidden, Epsilon: n.Epsilon,
		WeightBias: n.WeightBias, Quant: n.Quant, ScaleStrides: n.ScaleStrides,
	}
	inputErr := n.placeInputAndOutput(input, output)
	othersErr := n.placeOthers(others)
	if err := errors.Join(inputErr, othersErr); err != nil {
		return err
	}

	n.setOutputs()
	return nil
}

// rowsBytes returns the size of this rank's rows of 16-bit floats.
func (n *Norm) rowsBytes() int64 { return float16Bytes * n.Rows * n.Hidden }

func (n *Norm) placeInputAndOutput(input, output symmem.Memory) error {
	a := &n.Args
	var inputErr, outputErr error
	a.Input, inputErr = input.Slice(0, float16Bytes*int64(len(n.Inputs[0])))
	switch {
	case n.OnlyQuantized: // Args.Output stays empty
	case n.InPlace:
		// The output replaces this rank's rows of the input. In an AllReduceRMSNorm, these are all
		// rows, and n.Rank is 0.
		ownOffset := int64(n.Rank) * n.rowsBytes()
		a.Output, outputErr = a.Input.Slice(ownOffset, n.rowsBytes())
	default:
		a.Output, outputErr = output.Slice(0, n.rowsBytes())
	}

	return errors.Join(inputErr, outputErr)
}

// placeOthers places the other tensors in buffer.
func (n *Norm) placeOthers(buffer symmem.Memory) error {
	a := &n.Args
	offset := int64(0) // of the next tensor
	place := func(bytes int64) (symmem.Memory, error) {
		tensor, err := buffer.Slice(offset, bytes)
		const align = driver.NormAlign
		offset += (bytes + align - 1) / align * align // round up to a multiple of align
		return tensor, err
	}
	var residualErr, weightErr, quantizedErr, scalesErr error
	a.Residual, residualErr = place(n.rowsBytes())
	a.Weight, weightErr = place(float16Bytes * n.Hidden)
	if n.Quant != driver.QuantNone {
		a.Quantized, quantizedErr = place(quantizedBytes * n.Rows * n.Hidden)
		a.Scales, scalesErr = place(scaleBytes * int64(len(n.Want.Scales)))
	}

	return errors.Join(residualErr, weightErr, quantizedErr, scalesErr)
}

// setOutputs lists the tensors to check.
func (n *Norm) setOutputs() {
	n.outputs = []normOutput{{
		name: "residual", memory: n.Args.Residual, elementSize: float16Bytes,
		want: formula.Bytes(n.Want.Residual),
	}}
	if n.Quant != driver.QuantNone {
		quantized := normOutput{
			name: "quantized output", memory: n.Args.Quantized, elementSize: quantizedBytes,
			want: n.Want.Quantized,
		}
		scales := normOutput{ // with QuantStatic, an input that the call must not change
			name: "scales", memory: n.Args.Scales, elementSize: scaleBytes,
			want: formula.Bytes(n.Want.Scales),
		}
		n.outputs = append(n.outputs, quantized, scales)
	}

	if !n.OnlyQuantized {
		n.outputs = append(n.outputs, normOutput{
			name: "output", memory: n.Args.Output, elementSize: float16Bytes,
			want: formula.Bytes(n.Want.Output),
		})
	}
}

// Fill queues writes of the tensors that the call reads. rank is this rank's number in the group.
func (n *Norm) Fill(rank int, s *symmem.Stream) error {
	a := &n.Args
	inputErr := s.Copy(a.Input, symmem.Host(n.Inputs[rank]))
	residualErr := s.Copy(a.Residual, symmem.Host(n.ResidualBefore))
	weightErr := s.Copy(a.Weight, symmem.Host(n.Weights))
	var scalesErr error
	if n.Quant != driver.QuantNone {
		// QuantStatic reads the scales. Other kinds of quantization overwrite them.
		scalesErr = s.Copy(a.Scales, symmem.Host(n.ScalesBefore()))
	}

	return errors.Join(inputErr, residualErr, weightErr, scalesErr)
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

// CountWrong returns the number of elements that differ in any bit, and a text about the first one.
func (n *Norm) CountWrong() (wrongCount int64, first string) {
	for _, o := range n.outputs {
		for start := 0; start < len(o.want); start += o.elementSize {
			end := start + o.elementSize
			got, want := o.got[start:end], o.want[start:end]
			if bytes.Equal(got, want) {
				continue
			}

			wrongCount++
			if wrongCount == 1 {
				index := start / o.elementSize
				first = fmt.Sprintf("at index %d of the %s: %x instead of %x", index, o.name, got, want)
			}
		}
	}

	return wrongCount, first
}
