package nccl

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"symmem/driver"
	"symmem/driver/formula"
)

// TestEveryKernelOnce runs every direct kernel and checks the outputs. It uses groups of two,
// three and four ranks, as far as the machine has enough GPUs. The seed is fixed, so every run
// makes the same calls.
func TestEveryKernelOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	p := newTestbed(t, ranksUpTo(t, 4), maxOfferBytes+maxOfferBytes/8, random)
	buffers := make([]normBuffers, len(p.opened))
	p.must(func(m *testRank) (err error) {
		buffers[m.number], err = newNormBuffers(m)
		return err
	})
	var wanted []string
	rare := []trial{
		{layout: layout{dataType: driver.Float64}, op: driver.Avg},
		{layout: layout{dataType: driver.Int8, inPlace: true}, op: driver.Prod},
		{layout: layout{dataType: driver.Int64}, op: driver.Min},
	}
	for i, members := range memberLists(t) {
		p.regroupAndRegister(members...)
		p.runEachKernel(rare[i])
		p.runEachKernel(trial{layout: layout{dataType: driver.Float32}, op: driver.Sum})
		p.runEachKernel(trial{layout: layout{dataType: driver.Float16, inPlace: true}, op: driver.Max})
		p.runEachKernel(trial{layout: layout{dataType: driver.BFloat16}, op: driver.Avg})
		p.runEachKernel(trial{layout: layout{dataType: driver.Int32, inPlace: true}, op: driver.Min})
		for _, quant := range []driver.Quant{driver.QuantNone, driver.QuantPerRow} {
			for _, dataType := range []driver.DataType{driver.BFloat16, driver.Float16} {
				for _, shape := range [][2]int{{1, 1024}, {200, 1024}, {1, driver.MaxHidden}} {
					s := formula.NewNormCase(random, len(members), shape[0], shape[1], dataType, quant)
					p.normalize(buffers, s)
					p.normalize(buffers, s.Scatter(random)...)
				}
			}
		}

		wanted = append(wanted, kernelsOf(t, len(members))...)
	}

	// TestNormsInWindows runs the others.
	p.opened[0].requireKernels(t, slices.DeleteFunc(wanted, func(name string) bool {
		return strings.HasPrefix(name, "norm_pull")
	}))
}

// runEachKernel runs each kernel that supports the example's data type, using the smallest call
// that selects the kernel.
func (p *testbed) runEachKernel(example trial) {
	p.t.Helper()
	p.drawInputs(example.dataType)
	p.reduced = formula.Reduce(driver.RankOrder, example.op, example.dataType, p.inputs)
	offers := p.offers(example.layout)
	for _, kernel := range slices.Sorted(maps.Keys(offers)) {
		c, b := offers[kernel][0], batch{layout: example.layout}
		c.op, c.root = example.op, 1
		p.add(&b, c)
		p.run(&b, true)
	}
}
