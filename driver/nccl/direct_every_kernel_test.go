package nccl

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/driver/formula"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// TestEveryKernelOnce runs every direct kernel and checks the outputs. It uses groups of two, three
// and four ranks if the machine has enough GPUs. The seed is fixed, so every run makes the same
// calls.
func TestEveryKernelOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	p := newTestbed(t, atMost(t, 4), maxOfferBytes+maxOfferBytes/8, random)
	buffers := make([]normBuffers, len(p.opened))
	p.must(func(m *testRank) (err error) {
		buffers[m.number], err = newNormBuffers(m)
		return err
	})
	wanted := kernelsOf(t, 0)
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
		p.normalize(buffers, newNormCase(random, len(members), 200, 1024))
		p.normalize(buffers, newNormCase(random, len(members), 1, driver.MaxHidden))
		wanted = append(wanted, kernelsOf(t, len(members))...)
	}
	first := p.opened[0]
	c := newNormCase(random, 1, 5, 1024)
	if err := first.normalizeInSteps(p.testGroup, &buffers[0], c); err != nil {
		t.Error(err)
	}
	first.requireKernels(t, wanted)
}

// runEachKernel runs each kernel that supports a data type. It makes the smallest call that uses
// the kernel.
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

// normalizeInSteps runs the local part of a norm on one rank with two kernels.
func (m *testRank) normalizeInSteps(w *testGroup, d *normBuffers, s *normCase) error {
	call, err := d.prepare(m, s)
	if err != nil {
		return err
	}
	l := kernels.Local{Norm: *call.Norm, Send: call.Send, Recv: call.Recv}
	const threadsOfAdd = 256 // each adds driver.NormUnit elements
	adders := (l.Rows*l.Hidden/driver.NormUnit + threadsOfAdd - 1) / threadsOfAdd
	err = m.start(kernels.AddKernel, int(adders), threadsOfAdd, l.Params())
	blocks, threads := l.Grid()
	err = errors.Join(err, m.start(kernels.NormKernel, blocks, threads, l.Params()))
	if err == nil {
		_, err = d.check(w, m, s, &call)
	}
	return err
}

// start launches a kernel by its name, and counts it.
func (m *testRank) start(name string, blocks, threads int, params cuda.Params) error {
	d := m.device
	return d.gpu.Do(func() error {
		f, err := d.collectives.Function(d.gpu, name)
		if err != nil {
			return err
		}
		m.launched[f]++
		return d.gpu.CUDA.LaunchKernel(f, blocks, threads, m.stream.(*stream.Stream).CUDA, &params)
	})
}
