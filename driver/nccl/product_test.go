package nccl

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"

	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// matrices are what is multiplied, and what comes out: whole numbers so small that sums of them are
// exact in float32, in any order.
type matrices struct {
	kernels.Product
	weights, input, output []float32
}

func newMatrices(draws *rand.Rand, rows, depth, sequences int) *matrices {
	a := &matrices{
		Product: kernels.Product{Rows: rows, Depth: depth, Sequences: sequences},
		weights: make([]float32, rows*depth), input: make([]float32, sequences*depth),
	}
	for _, m := range [][]float32{a.weights, a.input} {
		for i := range m {
			m[i] = float32(draws.IntN(3) - 1)
		}
	}
	for s := range sequences {
		for r := range rows {
			sum := float32(0)
			for i, v := range a.input[s*depth:][:depth] {
				sum += v * a.weights[r*depth+i]
			}
			a.output = append(a.output, sum)
		}
	}
	return a
}

// multiply compares a product with its output, to the bit, and looks at what lies around that.
func (m *mate) multiply(w *team, d *desk, a *matrices) error {
	a.Weights, a.Input, a.Output = d.send, d.weight, d.recv
	want := bytes.Join([][]byte{poison, packed(a.output), poison}, nil)
	err := errors.Join(m.write(a.Weights, packed(a.weights)), m.write(a.Input, packed(a.input)),
		m.stream.Fill(a.Output-8, 0xff, int64(len(want))))
	if err != nil {
		return err
	}
	module, err := m.products()
	if err != nil {
		return err
	}
	c := m.group.(*communicator)
	blocks, threads := a.Grid(c.direct.exchange.multiprocessors)
	if err := m.start(a.Kernel(), module, blocks, threads, a.Params()); err != nil {
		return err
	}
	got, err := m.copied(w, a.Output-8, int64(len(want)))
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("the product of %d rows of %d with %d sequences is wrong, or what lies "+
			"beside it was written", a.Rows, a.Depth, a.Sequences)
	}
	return errors.Join(err, m.device.do(func() error { return m.device.cuda.ModuleUnload(module) }))
}

// products loads the object of products.
func (m *mate) products() (module cuda.Module, err error) {
	d := m.device
	err = d.do(func() error {
		major, minor, err := d.gpu.ComputeCapability()
		if err != nil {
			return err
		}
		object, err := kernels.ProductObject(major, minor)
		if err == nil {
			module, err = d.cuda.ModuleLoadData(object)
		}
		return err
	})
	return module, err
}
