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

const (
	normBytes   = 1 << 20
	maxNormRows = 24
)

// normTrial is a norm on one path. Arrays other than Send and Recv are in a third buffer.
type normTrial struct {
	*formula.NormCase
	path         driver.Path
	unregistered bool
	others       []buffer // by rank
}

func newNormFixture(t *testing.T, h Harness, n int, o options) (*fixture, []buffer) {
	t.Helper()
	fx := newFixture(t, h, n, normBytes, o)
	others := make([]buffer, n)
	fx.each(func(r *rank) { others[r.number] = r.newBuffer(4 * normBytes) })
	return fx, others
}

func (tr *normTrial) call(fx *fixture, r *rank) driver.Call {
	norm, other := tr.Norm, tr.others[r.number]
	norm.Residual, norm.Weight = other.addr(margin), other.addr(normBytes)
	if tr.Quant != driver.QuantNone {
		norm.Quantized, norm.Scales = other.addr(2*normBytes+margin), other.addr(3*normBytes+margin)
	}
	send, recv := fx.send[r.number], fx.recv[r.number]
	call := driver.Call{
		Operation: driver.AllReduceRMSNorm, DataType: tr.DataType, Count: tr.Rows * tr.Hidden,
		Path: tr.path, Send: send.addr(margin), Recv: recv.addr(margin), SendWindow: send.window,
		RecvWindow: recv.window, Norm: &norm,
	}
	if tr.InPlace {
		call.Recv, call.RecvWindow = call.Send, call.SendWindow
	}
	if tr.unregistered {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	call.Digest = digest(&call)
	return call
}

// fill writes the inputs, and canaries around all outputs.
func (tr *normTrial) fill(r *rank, call *driver.Call) {
	_, bytes := call.Spans(len(r.world.ranks), r.number)
	r.must(r.stream.Fill(call.Recv-margin, canary, bytes+2*margin))
	other := tr.others[r.number]
	r.must(r.stream.Fill(other.addr(0), canary, other.segment.Bytes()))
	r.write(call.Send, formula.Bytes(tr.Inputs[r.number]))
	r.write(call.Norm.Residual, formula.Bytes(tr.OldResidual))
	r.write(call.Norm.Weight, formula.Bytes(tr.Weights))
	if tr.Quant != driver.QuantNone {
		r.write(call.Norm.Scales, formula.Bytes(tr.OldScales()))
	}
}

// checkOutputs checks all outputs and the bytes around them.
func (tr *normTrial) checkOutputs(r *rank, call *driver.Call) {
	expect := func(at uintptr, want []byte) {
		r.expect(at, want)
		r.expectAll(at-margin, canary, margin)
		r.expectAll(at+uintptr(len(want)), canary, margin)
	}
	expect(call.Norm.Residual, formula.Bytes(tr.Want.Residual))
	if !tr.OnlyQuantized {
		expect(call.Recv, formula.Bytes(tr.Want.Output))
	}
	if tr.Quant == driver.QuantNone || tr.Rows == 0 {
		return
	}
	expect(call.Norm.Quantized, tr.Want.Quantized)
	scales := r.read(call.Norm.Scales, 4*int64(len(tr.Want.Scales)))
	formula.SetCanonicalNaNs(scales)
	r.must(difference(scales, formula.Bytes(tr.Want.Scales)))
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
	fx, others := newNormFixture(t, h, n, options{check: true, formula: f})
	tried := 0
	for i := range 8 {
		c := formula.RandomNorm(random, n, maxNormRows)
		if i%3 == 0 {
			c.DrawSpecials(random)
		}
		if f != driver.AnyFormula {
			c.Expect(f)
		}
		if h.skipsTrial(i) {
			continue
		}
		for _, path := range h.Paths {
			trial := &normTrial{c, path, path != driver.PathWindow && random.IntN(2) == 0, others}
			tried += trial.perform(fx)
		}
	}
	if tried == 0 && n > 1 { // GPUs have no direct path in a group of one rank
		t.Errorf("no path supports norms on %d ranks", n)
	}
}

// perform makes the call unless its path refuses it, and returns the number of calls made.
func (tr *normTrial) perform(fx *fixture) int {
	fx.t.Helper()
	first := fx.ranks[0]
	refusal := first.group.Offer(tr.call(fx, first)).Refusal(tr.path)
	if refusal != nil {
		wantError(fx.t, tr.String(), refusal, driver.ErrUnsupported)
		return 0
	}
	if !fx.attempt(func(r *rank) {
		call := tr.call(fx, r)
		tr.fill(r, &call)
		r.must(r.launch(r.group, r.stream, call))
		tr.checkOutputs(r, &call)
	}) {
		fx.t.Fatalf("%v, path %v, unregistered: %v", tr, tr.path, tr.unregistered)
	}
	return 1
}

// choosePath sets the path to the first one that supports norms.
func (tr *normTrial) choosePath(fx *fixture) {
	fx.t.Helper()
	first := fx.ranks[0]
	for _, tr.path = range fx.harness.Paths {
		if first.group.Offer(tr.call(fx, first)).Refusal(tr.path) == nil {
			return
		}
	}
	fx.t.Skipf("no path supports norms on %d ranks", len(fx.ranks))
}

func testCapturedNorm(t *testing.T, h Harness) {
	fx, others := newNormFixture(t, h, min(3, h.Ranks), options{check: true})
	random := rand.New(rand.NewPCG(3, 3))
	tr := &normTrial{
		NormCase: formula.DrawNorm(random, len(fx.ranks), 5, 1024, driver.Float16, driver.QuantPerGroup),
		others:   others,
	}
	tr.choosePath(fx)
	fx.each(func(r *rank) {
		call := tr.call(fx, r)
		g := r.capture(func() { r.must(r.queue(r.group, r.stream, call)) })
		for round := range 3 {
			r.setStep("round %d", round)
			tr.fill(r, &call) // restore the residual, which the call overwrites
			r.must(g.Launch(r.stream))
			r.must(r.stream.Synchronize(fx.ctx))
			tr.checkOutputs(r, &call)
		}
	})
}

// testNormsDiffer gives one rank a different digest.
func testNormsDiffer(t *testing.T, h Harness) {
	fx, others := newNormFixture(t, h, mismatchRanks(h), options{check: true, expectFaults: true})
	random := rand.New(rand.NewPCG(4, 4))
	tr := &normTrial{
		NormCase: formula.DrawNorm(random, len(fx.ranks), 40, 1024, driver.BFloat16, driver.QuantPerRow),
		others:   others,
	}
	tr.choosePath(fx)
	fx.each(func(r *rank) {
		call := tr.call(fx, r)
		tr.fill(r, &call)
		if r.number == 1 {
			call.Digest++
		}
		var mismatch *driver.MismatchError
		if err := r.launch(r.group, r.stream, call); !errors.As(err, &mismatch) {
			r.failf("got %v, want a MismatchError", err)
		}
		old := formula.Bytes(tr.OldResidual)
		if call.Path != driver.PathDirect { // the direct path's kernels may write poison
			r.expect(call.Norm.Residual, old)
			r.expectAll(call.Norm.Quantized, canary, tr.Rows*tr.Hidden)
		}
	})
}
