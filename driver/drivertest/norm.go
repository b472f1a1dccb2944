package drivertest

import (
	"errors"
	"math/rand/v2"
	"testing"

	"symmem/driver"
	"symmem/driver/formula"
)

var normRequirements = []requirement{
	{"norms without a formula match bit by bit", testNorms(driver.AnyFormula)},
	{"norms of sums in tree order match bit by bit", testNorms(driver.Tree)},
	{"a captured norm can be replayed", testCapturedNorm},
	{"norms that differ cause a MismatchError and no result", testNormsDiffer},
}

const (
	normBytes   = 1 << 20
	maxNormRows = 24
)

// normPathCase is a norm on one path. Arrays other than Send and Recv are in an extra buffer.
type normPathCase struct {
	*formula.NormCase
	path           driver.Path
	isUnregistered bool
	extraBuffers   []buffer // by rank
}

func newNormFixture(t *testing.T, h Harness, n int, o options) (*bufferWorld, []buffer) {
	t.Helper()
	bw := newBufferWorld(t, h, n, normBytes, o)
	extraBuffers := make([]buffer, n)
	bw.onEachRank(func(r *rank) { extraBuffers[r.number] = r.newBuffer(4 * normBytes) })
	return bw, extraBuffers
}

func (tc *normPathCase) call(bw *bufferWorld, r *rank) driver.Call {
	norm, extraBuffer := tc.Norm, tc.extraBuffers[r.number]
	norm.Residual, norm.Weight = extraBuffer.addressAt(canaryCount),
		extraBuffer.addressAt(normBytes)
	if tc.Quant != driver.QuantNone {
		norm.Quantized, norm.Scales = extraBuffer.addressAt(2*normBytes+canaryCount),
			extraBuffer.addressAt(3*normBytes+canaryCount)
	}
	send, recv := bw.send[r.number], bw.recv[r.number]
	call := driver.Call{
		Operation: driver.AllReduceRMSNorm, DataType: tc.DataType, Count: tc.Rows * tc.Hidden,
		Path: tc.path, Send: send.addressAt(canaryCount), Recv: recv.addressAt(canaryCount),
		SendWindow: send.window,
		RecvWindow: recv.window, Norm: &norm,
	}
	if tc.InPlace {
		call.Recv, call.RecvWindow = call.Send, call.SendWindow
	}
	if tc.isUnregistered {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	call.Digest = callDigest(&call)
	return call
}

// writeInputs writes the inputs, and surrounds all outputs with canaries.
func (tc *normPathCase) writeInputs(r *rank, call *driver.Call) {
	_, bytes := call.Spans(len(r.world.ranks), r.number)
	r.must(r.stream.Fill(call.Recv-canaryCount, canary, bytes+2*canaryCount))
	extraBuffer := tc.extraBuffers[r.number]
	r.must(r.stream.Fill(extraBuffer.addressAt(0), canary, extraBuffer.segment.Bytes()))
	r.write(call.Send, formula.Bytes(tc.Inputs[r.number]))
	r.write(call.Norm.Residual, formula.Bytes(tc.OldResidual))
	r.write(call.Norm.Weight, formula.Bytes(tc.Weights))
	if tc.Quant != driver.QuantNone {
		r.write(call.Norm.Scales, formula.Bytes(tc.OldScales()))
	}
}

// checkOutputs checks all outputs and the bytes around them.
func (tc *normPathCase) checkOutputs(r *rank, call *driver.Call) {
	expect := func(at uintptr, want []byte) {
		r.expectBytes(at, want)
		r.expectFilled(at-canaryCount, canary, canaryCount)
		r.expectFilled(at+uintptr(len(want)), canary, canaryCount)
	}
	expect(call.Norm.Residual, formula.Bytes(tc.Want.Residual))
	if !tc.OnlyQuantized {
		expect(call.Recv, formula.Bytes(tc.Want.Output))
	}
	if tc.Quant == driver.QuantNone || tc.Rows == 0 {
		return
	}
	expect(call.Norm.Quantized, tc.Want.Quantized)
	scales := r.read(call.Norm.Scales, 4*int64(len(tc.Want.Scales)))
	formula.SetCanonicalNaNs(scales)
	r.must(compareBytes(scales, formula.Bytes(tc.Want.Scales)))
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
	bw, extraBuffers := newNormFixture(t, h, n, options{comparesCalls: true, formula: f})
	triedCalls := 0
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
			isUnregistered := path != driver.PathWindow && random.IntN(2) == 0
			tc := &normPathCase{c, path, isUnregistered, extraBuffers}
			triedCalls += tc.run(bw)
		}
	}
	if triedCalls == 0 && n > 1 { // GPUs have no direct path in a group of one rank
		t.Errorf("no path supports norms on %d ranks", n)
	}
}

// run makes the call unless its path refuses it, and returns the number of calls made.
func (tc *normPathCase) run(bw *bufferWorld) int {
	bw.t.Helper()
	first := bw.ranks[0]
	refusal := first.group.Offer(tc.call(bw, first)).Refusal(tc.path)
	if refusal != nil {
		wantError(bw.t, tc.String(), refusal, driver.ErrUnsupported)
		return 0
	}
	if !bw.tryOnEachRank(func(r *rank) {
		call := tc.call(bw, r)
		tc.writeInputs(r, &call)
		r.must(r.launchAndWait(r.group, r.stream, call))
		tc.checkOutputs(r, &call)
	}) {
		bw.t.Fatalf("%v, path %v, unregistered: %v", tc, tc.path, tc.isUnregistered)
	}
	return 1
}

// setSupportedPath selects the first path that supports the norm.
func (tc *normPathCase) setSupportedPath(bw *bufferWorld) {
	bw.t.Helper()
	first := bw.ranks[0]
	for _, tc.path = range bw.harness.Paths {
		if first.group.Offer(tc.call(bw, first)).Refusal(tc.path) == nil {
			return
		}
	}
	bw.t.Skipf("no path supports norms on %d ranks", len(bw.ranks))
}

func testCapturedNorm(t *testing.T, h Harness) {
	bw, extraBuffers := newNormFixture(t, h, min(3, h.Ranks), options{comparesCalls: true})
	random := rand.New(rand.NewPCG(3, 3))
	tc := &normPathCase{
		NormCase: formula.DrawNorm(random, len(bw.ranks), 5, 1024, driver.Float16,
			driver.QuantPerGroup),
		extraBuffers: extraBuffers,
	}
	tc.setSupportedPath(bw)
	bw.onEachRank(func(r *rank) {
		call := tc.call(bw, r)
		g := r.capture(func() { r.must(r.queueCall(r.group, r.stream, call)) })
		for round := range 3 {
			r.setStep("round %d", round)
			tc.writeInputs(r, &call) // restore the residual, which the call overwrites
			r.must(g.Launch(r.stream))
			r.must(r.stream.Synchronize(bw.ctx))
			tc.checkOutputs(r, &call)
		}
	})
}

// testNormsDiffer changes the digest, a hash of the call, on one rank.
func testNormsDiffer(t *testing.T, h Harness) {
	bw, extraBuffers := newNormFixture(t, h, mismatchRankCount(h), options{comparesCalls: true,
		expectsFaults: true})
	random := rand.New(rand.NewPCG(4, 4))
	tc := &normPathCase{
		NormCase: formula.DrawNorm(random, len(bw.ranks), 40, 1024, driver.BFloat16,
			driver.QuantPerRow),
		extraBuffers: extraBuffers,
	}
	tc.setSupportedPath(bw)
	bw.onEachRank(func(r *rank) {
		call := tc.call(bw, r)
		tc.writeInputs(r, &call)
		if r.number == 1 {
			call.Digest++
		}
		var mismatch *driver.MismatchError
		if err := r.launchAndWait(r.group, r.stream, call); !errors.As(err, &mismatch) {
			r.failf("got %v, want a MismatchError", err)
		}
		oldResidual := formula.Bytes(tc.OldResidual)
		if call.Path != driver.PathDirect { // the direct path's kernels may write poison
			r.expectBytes(call.Norm.Residual, oldResidual)
			r.expectFilled(call.Norm.Quantized, canary, tc.Rows*tc.Hidden)
		}
	})
}
