package drivertest

import (
	"errors"
	"math/rand/v2"
	"testing"

	"symmem/driver"
	"symmem/driver/formula"
)

var normRequirements = []requirement{
	{"norms of sums in any order match bit for bit", testNorms(driver.AnyFormula)},
	{"norms of sums in tree order match bit for bit", testNorms(driver.Tree)},
	{"a captured norm can be replayed", testCapturedNorm},
	{"norms that differ cause a MismatchError and no result", testNormsDiffer},
	{"an all-reduce and a reduce-scatter of norms do not match", testNormOperationsDiffer},
}

const (
	normBytes   = 1 << 20
	maxNormRows = 24
)

// normTrial embeds the case of rank 0. All cases have the same arguments.
type normTrial struct {
	*formula.NormCase
	cases          []*formula.NormCase // by rank in a ReduceScatterRMSNorm, and otherwise one
	path           driver.Path
	isUnregistered bool
	extraBuffers   []buffer // by rank
}

func newNormWorld(t *testing.T, h Harness, n int, o options) (*bufferWorld, []buffer) {
	t.Helper()
	bw := newBufferWorld(t, h, n, normBytes, o)
	extraBuffers := make([]buffer, n)
	bw.onEachRank(func(r *rank) { extraBuffers[r.number] = r.newBuffer(4 * normBytes) })
	return bw, extraBuffers
}

func (tr *normTrial) call(bw *bufferWorld, r *rank) driver.Call {
	norm, extraBuffer := tr.Norm, tr.extraBuffers[r.number]
	norm.Residual = extraBuffer.addressAt(canaryCount)
	norm.Weight = extraBuffer.addressAt(normBytes)
	if tr.Quant != driver.QuantNone {
		norm.Quantized = extraBuffer.addressAt(2*normBytes + canaryCount)
		norm.Scales = extraBuffer.addressAt(3*normBytes + canaryCount)
	}
	send, recv := bw.send[r.number], bw.recv[r.number]
	call := driver.Call{
		Operation: tr.Operation, DataType: tr.DataType, Count: tr.Rows * tr.Hidden,
		Path: tr.path, Send: send.addressAt(canaryCount), Recv: recv.addressAt(canaryCount),
		SendWindow: send.window, RecvWindow: recv.window, Norm: &norm,
	}
	if tr.InPlace {
		call.Recv, call.RecvWindow = call.Send, call.SendWindow
		call.Recv += uintptr(2 * tr.caseOf(r).Rank * int(call.Count))
	}
	if tr.Operation == driver.ReduceScatterRMSNorm {
		call.RecvWindow = nil // the operation does not use it
	}
	if tr.isUnregistered {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	call.Digest = callDigest(&call)
	return call
}

func (tr *normTrial) caseOf(r *rank) *formula.NormCase {
	return tr.cases[r.number%len(tr.cases)]
}

func (tr *normTrial) writeInputs(r *rank, call *driver.Call) {
	c := tr.caseOf(r)
	_, bytes := call.Spans(len(r.world.ranks), r.number)
	r.must(r.stream.Fill(call.Recv-canaryCount, canary, bytes+2*canaryCount))
	extraBuffer := tr.extraBuffers[r.number]
	r.must(r.stream.Fill(extraBuffer.addressAt(0), canary, extraBuffer.segment.Bytes()))
	r.write(call.Send, formula.Bytes(c.Inputs[r.number]))
	r.write(call.Norm.Residual, formula.Bytes(c.ResidualBefore))
	r.write(call.Norm.Weight, formula.Bytes(tr.Weights))
	if tr.Quant != driver.QuantNone {
		r.write(call.Norm.Scales, formula.Bytes(c.ScalesBefore()))
	}
}

func (tr *normTrial) checkOutputs(r *rank, call *driver.Call) {
	want := tr.caseOf(r).Want
	expect := func(output uintptr, want []byte) {
		r.expectBytes(output, want)
		r.expectFilled(output-canaryCount, canary, canaryCount)
		r.expectFilled(output+uintptr(len(want)), canary, canaryCount)
	}
	expect(call.Norm.Residual, formula.Bytes(want.Residual))
	switch {
	case tr.OnlyQuantized:
	case tr.InPlace && len(tr.cases) > 1: // between the inputs of other ranks
		r.expectBytes(call.Recv, formula.Bytes(want.Output))
	default:
		expect(call.Recv, formula.Bytes(want.Output))
	}
	if tr.Quant == driver.QuantNone || tr.Rows == 0 {
		return
	}
	expect(call.Norm.Quantized, want.Quantized)
	scales := r.read(call.Norm.Scales, 4*int64(len(want.Scales)))
	formula.SetCanonicalNaNs(scales)
	r.must(compareBytes(scales, formula.Bytes(want.Scales)))
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
	bw, extraBuffers := newNormWorld(t, h, n, options{checkCalls: true, formula: f})
	triedCalls := 0
	for i := range 8 {
		c := formula.RandomNormCase(random, n, maxNormRows)
		if i%3 == 0 {
			c.AddSpecialValues(random)
		}
		if f != driver.AnyFormula {
			c.SetWant(f)
		}
		if h.skipsTrial(i) {
			continue
		}
		for _, cases := range [][]*formula.NormCase{{c}, scatteredCases(c, f, random)} {
			for _, path := range h.Paths {
				isUnregistered := path != driver.PathWindow && random.IntN(2) == 0
				tr := &normTrial{cases[0], cases, path, isUnregistered, extraBuffers}
				triedCalls += tr.run(bw)
			}
		}
	}
	if triedCalls == 0 && n > 1 { // GPUs have no direct path in a group of one rank
		t.Errorf("no path supports norms on %d ranks", n)
	}
}

// scatteredCases returns the cases of a ReduceScatterRMSNorm with the arguments of c, but fewer
// rows.
func scatteredCases(
	c *formula.NormCase, f driver.Formula, random *rand.Rand,
) []*formula.NormCase {
	fewer := *c
	fewer.Rows = min(c.Rows, maxNormRows/int64(len(c.Inputs)))
	cases := fewer.Scatter(random)
	for _, s := range cases {
		if f != driver.AnyFormula {
			s.SetWant(f)
		}
	}
	return cases
}

// run makes the call unless its path refuses the call. It returns the number of calls.
func (tr *normTrial) run(bw *bufferWorld) int {
	bw.t.Helper()
	if !tr.Operation.SupportsPath(tr.path) {
		return 0
	}
	first := bw.ranks[0]
	refusal := first.group.Offer(tr.call(bw, first)).Refusal(tr.path)
	if refusal != nil {
		wantError(bw.t, tr.String(), refusal, driver.ErrUnsupported)
		return 0
	}
	if !bw.tryOnEachRank(func(r *rank) {
		call := tr.call(bw, r)
		tr.writeInputs(r, &call)
		r.must(r.launchAndWait(r.group, r.stream, call))
		tr.checkOutputs(r, &call)
	}) {
		bw.t.Fatalf("%v, path %v, unregistered: %v", tr, tr.path, tr.isUnregistered)
	}
	return 1
}

func (tr *normTrial) setSupportedPath(bw *bufferWorld) {
	bw.t.Helper()
	first := bw.ranks[0]
	for _, tr.path = range bw.harness.Paths {
		if first.group.Offer(tr.call(bw, first)).Refusal(tr.path) == nil {
			return
		}
	}
	bw.t.Skipf("no path supports norms on %d ranks", len(bw.ranks))
}

func testCapturedNorm(t *testing.T, h Harness) {
	bw, extraBuffers := newNormWorld(t, h, min(3, h.Ranks), options{checkCalls: true})
	random := rand.New(rand.NewPCG(3, 3))
	c := formula.NewNormCase(random, len(bw.ranks), 5, 1024, driver.Float16, driver.QuantPerGroup)
	for _, cases := range [][]*formula.NormCase{{c}, c.Scatter(random)} {
		tr := &normTrial{NormCase: cases[0], cases: cases, extraBuffers: extraBuffers}
		tr.setSupportedPath(bw)
		tr.capture(bw)
	}
}

func (tr *normTrial) capture(bw *bufferWorld) {
	bw.onEachRank(func(r *rank) {
		call := tr.call(bw, r)
		g := r.capture(func() { r.must(r.queueCall(r.group, r.stream, call)) })
		for round := range 3 {
			r.setStep("round %d", round)
			tr.writeInputs(r, &call) // restore the residual, which the call overwrites
			r.must(g.Launch(r.stream))
			r.must(r.stream.Synchronize(bw.ctx))
			tr.checkOutputs(r, &call)
		}
	})
}

func testNormsDiffer(t *testing.T, h Harness) {
	o := options{checkCalls: true, allowFaults: true}
	bw, extraBuffers := newNormWorld(t, h, mismatchRankCount(h), o)
	random := rand.New(rand.NewPCG(4, 4))
	c := formula.NewNormCase(random, len(bw.ranks), 40, 1024, driver.BFloat16, driver.QuantPerRow)
	tr := &normTrial{NormCase: c, cases: []*formula.NormCase{c}, extraBuffers: extraBuffers}
	tr.expectMismatch(bw, func(call *driver.Call) { call.Digest++ })
}

// testNormOperationsDiffer checks that a rank with the other operation is a mismatch. The digest
// covers the operation.
func testNormOperationsDiffer(t *testing.T, h Harness) {
	o := options{checkCalls: true, allowFaults: true}
	bw, extraBuffers := newNormWorld(t, h, mismatchRankCount(h), o)
	random := rand.New(rand.NewPCG(5, 5))
	c := formula.NewNormCase(random, len(bw.ranks), 4, 1024, driver.BFloat16, driver.QuantNone)
	cases := c.Scatter(random)
	tr := &normTrial{NormCase: cases[0], cases: cases, extraBuffers: extraBuffers}
	tr.expectMismatch(bw, func(call *driver.Call) {
		call.Operation = driver.AllReduceRMSNorm
		call.Recv = bw.recv[1].addressAt(canaryCount)
		call.Digest = callDigest(call)
	})
}

// expectMismatch makes a call that differs on rank 1.
func (tr *normTrial) expectMismatch(bw *bufferWorld, change func(call *driver.Call)) {
	tr.setSupportedPath(bw)
	bw.onEachRank(func(r *rank) {
		call := tr.call(bw, r)
		tr.writeInputs(r, &call)
		if r.number == 1 {
			change(&call)
		}
		var mismatch *driver.MismatchError
		if err := r.launchAndWait(r.group, r.stream, call); !errors.As(err, &mismatch) {
			r.failf("got %v, want a MismatchError", err)
		}
		if call.Path != driver.PathDirect { // the direct path's kernels may write poison
			r.expectBytes(call.Norm.Residual, formula.Bytes(tr.caseOf(r).ResidualBefore))
			if tr.Quant != driver.QuantNone {
				r.expectFilled(call.Norm.Quantized, canary, tr.Rows*tr.Hidden)
			}
		}
	})
}
