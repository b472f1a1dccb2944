package drivertest

import (
	"errors"
	"math/rand/v2"
	"testing"

	"symmem/driver"
	"symmem/driver/formula"
)

var normClauses = []clause{
	{"norms without a formula match bit by bit", testNorms(driver.AnyFormula)},
	{"norms of sums by a tree match bit by bit", testNorms(driver.Tree)},
	{"a captured norm can be replayed", testCapturedNorm},
	{"norms that differ cause a MismatchError and no result", testNormsDiffer},
}

// normBytes is the size of each buffer of a norm. maxNormRows is the maximum number of rows in a
// case.
const (
	normBytes   = 1 << 20
	maxNormRows = 24
)

// normTrial is a norm on one path. All arrays other than Send and Recv are in a third buffer.
type normTrial struct {
	*formula.NormCase
	path         driver.Path
	unregistered bool
	others       []buffer // by rank
}

// newNormFixture adds a buffer for the residual, the weights and the quantized output to a fixture.
func newNormFixture(t *testing.T, h Harness, n int, o options) (*fixture, []buffer) {
	t.Helper()
	b := newFixture(t, h, n, normBytes, o)
	others := make([]buffer, n)
	b.each(func(r *rank) { others[r.number] = r.newBuffer(4 * normBytes) })
	return b, others
}

func (c *normTrial) call(b *fixture, r *rank) driver.Call {
	norm, other := c.Norm, c.others[r.number]
	norm.Residual, norm.Weight = other.addr(margin), other.addr(normBytes)
	if c.Quant != driver.QuantNone {
		norm.Quantized, norm.Scales = other.addr(2*normBytes+margin), other.addr(3*normBytes+margin)
	}
	send, recv := b.send[r.number], b.recv[r.number]
	call := driver.Call{
		Operation: driver.AllReduceRMSNorm, DataType: c.DataType, Count: c.Rows * c.Hidden,
		Path: c.path, Send: send.addr(margin), Recv: recv.addr(margin), SendWindow: send.window,
		RecvWindow: recv.window, Norm: &norm,
	}
	if c.InPlace {
		call.Recv, call.RecvWindow = call.Send, call.SendWindow
	}
	if c.unregistered {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	call.Digest = digest(&call)
	return call
}

// fill writes the inputs, and canaries around all outputs.
func (c *normTrial) fill(r *rank, call *driver.Call) {
	_, bytes := call.Spans(len(r.world.ranks), r.number)
	r.ok(r.stream.Fill(call.Recv-margin, canary, bytes+2*margin))
	other := c.others[r.number]
	r.ok(r.stream.Fill(other.addr(0), canary, other.segment.Bytes()))
	r.write(call.Send, formula.Bytes(c.Inputs[r.number]))
	r.write(call.Norm.Residual, formula.Bytes(c.OldResidual))
	r.write(call.Norm.Weight, formula.Bytes(c.Weights))
	if c.Quant != driver.QuantNone {
		r.write(call.Norm.Scales, formula.Bytes(c.OldScales()))
	}
}

// checkOutputs compares all outputs with the expected ones, and checks the bytes around them.
func (c *normTrial) checkOutputs(r *rank, call *driver.Call) {
	expect := func(at uintptr, want []byte) {
		r.expect(at, want)
		r.expectAll(at-margin, canary, margin)
		r.expectAll(at+uintptr(len(want)), canary, margin)
	}
	expect(call.Norm.Residual, formula.Bytes(c.Want.Residual))
	if !c.OnlyQuantized {
		expect(call.Recv, formula.Bytes(c.Want.Output))
	}
	if c.Quant == driver.QuantNone || c.Rows == 0 {
		return
	}
	expect(call.Norm.Quantized, c.Want.Quantized)
	scales := r.read(call.Norm.Scales, 4*int64(len(c.Want.Scales)))
	formula.SetCanonicalNaNs(scales)
	r.ok(difference(scales, formula.Bytes(c.Want.Scales)))
}

// testNorms tries random norms on every path that supports them, with and without windows.
func testNorms(f driver.Formula) func(*testing.T, Harness) {
	return func(t *testing.T, h Harness) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 1))
		for n := 1; n <= min(4, h.Ranks); n++ {
			if f.Fits(n) == nil {
				tryNorms(t, h, f, n, random)
			}
		}
	}
}

func tryNorms(t *testing.T, h Harness, f driver.Formula, n int, random *rand.Rand) {
	t.Helper()
	b, others := newNormFixture(t, h, n, options{check: true, formula: f})
	tried := 0
	for i := range 8 {
		c := formula.RandomNorm(random, n, maxNormRows)
		if i%3 == 0 {
			c.DrawSpecials(random)
		}
		if f != driver.AnyFormula {
			c.Expect(f)
		}
		if h.skips(i) {
			continue
		}
		for _, path := range h.Paths {
			trial := &normTrial{c, path, path != driver.PathWindow && random.IntN(2) == 0, others}
			tried += trial.perform(b)
		}
	}
	if tried == 0 && n > 1 { // GPUs have no direct path in a group of one rank
		t.Errorf("no path supports norms on %d ranks", n)
	}
}

// perform makes the call unless its path refuses it, and returns the number of calls made.
func (c *normTrial) perform(b *fixture) int {
	b.t.Helper()
	first := b.ranks[0]
	refusal := first.group.Offer(c.call(b, first)).Refusal(c.path)
	if refusal != nil {
		wantError(b.t, c.String(), refusal, driver.ErrUnsupported)
		return 0
	}
	if !b.attempt(func(r *rank) {
		call := c.call(b, r)
		c.fill(r, &call)
		r.ok(r.launch(r.group, r.stream, call))
		c.checkOutputs(r, &call)
	}) {
		b.t.Fatalf("%v, path %v, unregistered: %v", c, c.path, c.unregistered)
	}
	return 1
}

// choosePath sets the path to the first one that supports norms.
func (c *normTrial) choosePath(b *fixture) {
	b.t.Helper()
	first := b.ranks[0]
	for _, c.path = range b.harness.Paths {
		if first.group.Offer(c.call(b, first)).Refusal(c.path) == nil {
			return
		}
	}
	b.t.Skipf("no path supports norms on %d ranks", len(b.ranks))
}

func testCapturedNorm(t *testing.T, h Harness) {
	b, others := newNormFixture(t, h, min(3, h.Ranks), options{check: true})
	random := rand.New(rand.NewPCG(3, 3))
	c := &normTrial{
		NormCase: formula.DrawNorm(random, len(b.ranks), 5, 1024, driver.Float16, driver.QuantPerGroup),
		others:   others,
	}
	c.choosePath(b)
	b.each(func(r *rank) {
		call := c.call(b, r)
		g := r.capture(func() { r.ok(r.queue(r.group, r.stream, call)) })
		for round := range 3 {
			r.setStep("round %d", round)
			c.fill(r, &call) // restore the residual, which the call overwrites
			r.ok(g.Launch(r.stream))
			r.ok(r.stream.Synchronize(b.ctx))
			c.checkOutputs(r, &call)
		}
	})
}

// testNormsDiffer gives one rank a different digest. Except on the direct path, no output other
// than Recv may be written.
func testNormsDiffer(t *testing.T, h Harness) {
	b, others := newNormFixture(t, h, mismatchRanks(h), options{check: true, expectFaults: true})
	random := rand.New(rand.NewPCG(4, 4))
	c := &normTrial{
		NormCase: formula.DrawNorm(random, len(b.ranks), 40, 1024, driver.BFloat16, driver.QuantPerRow),
		others:   others,
	}
	c.choosePath(b)
	b.each(func(r *rank) {
		call := c.call(b, r)
		c.fill(r, &call)
		if r.number == 1 {
			call.Digest++
		}
		var mismatch *driver.MismatchError
		if err := r.launch(r.group, r.stream, call); !errors.As(err, &mismatch) {
			r.failf("got %v, want a MismatchError", err)
		}
		old := formula.Bytes(c.OldResidual)
		if call.Path != driver.PathDirect { // the direct path's kernels may write poison
			r.expect(call.Norm.Residual, old)
			r.expectAll(call.Norm.Quantized, canary, c.Rows*c.Hidden)
		}
	})
}
