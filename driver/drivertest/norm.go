package drivertest

import (
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
	normBytes   = 1 << 20 // size of the buffer of each tensor
	maxNormRows = 24      // so that the tensors fit
)

// normTrial is an AllReduceRMSNorm or ReduceScatterRMSNorm on all ranks. In a ReduceScatterRMSNorm,
// each rank has a different case, because it has different outputs. The cases have the same
// arguments. normTrial embeds the first case.
type normTrial struct {
	*formula.NormCase
	cases          []*formula.NormCase // by rank in a ReduceScatterRMSNorm, and otherwise one
	path           driver.Path
	isUnregistered bool     // the call has no windows
	extraBuffers   []buffer // by rank, for the tensors other than the input and the output
}

// newNormWorld opens n ranks, and returns the world and normTrial.extraBuffers.
func newNormWorld(t *testing.T, h Harness, n int, o options) (*bufferWorld, []buffer) {
	t.Helper()
	bw := newBufferWorld(t, h, n, normBytes, o)
	extraBuffers := make([]buffer, n)
	const tensorCount = 4 // residual, weight, quantized output and scales
	bw.onEachRank(func(r *rank) {
		extraBuffers[r.number] = r.newBuffer(tensorCount * normBytes)
	})
	return bw, extraBuffers
}

// call returns a rank's call. All outputs have space for canaries around them.
func (tr *normTrial) call(bw *bufferWorld, r *rank) driver.Call {
	norm := tr.Norm // a copy
	extraBuffer := tr.extraBuffers[r.number]
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
		ownRank := tr.caseOf(r).Rank // 0 in an AllReduceRMSNorm
		ownOffset := ownRank * int(call.Count) * tr.DataType.Size()
		call.Recv = call.Send + uintptr(ownOffset)
		call.RecvWindow = call.SendWindow
	}

	if tr.Operation == driver.ReduceScatterRMSNorm {
		call.RecvWindow = nil // the operation does not use it
	}

	if tr.isUnregistered {
		call.SendWindow = nil
		call.RecvWindow = nil
	}

	call.Digest = callDigest(&call)
	return call
}

// caseOf returns the case of a rank.
func (tr *normTrial) caseOf(r *rank) *formula.NormCase {
	if len(tr.cases) == 1 {
		return tr.cases[0]
	}

	return tr.cases[r.number]
}

// writeInputs writes the inputs of a rank's call, and canaries to and around the outputs.
func (tr *normTrial) writeInputs(r *rank, call *driver.Call) {
	c := tr.caseOf(r)
	_, outputBytes := call.Spans(len(r.world.ranks), r.number)
	r.must(r.stream.Fill(call.Recv-canaryCount, canary, outputBytes+2*canaryCount))
	extraBuffer := tr.extraBuffers[r.number]
	r.must(r.stream.Fill(extraBuffer.addressAt(0), canary, extraBuffer.segment.Bytes()))
	r.write(call.Send, formula.Bytes(c.Inputs[r.number]))
	r.write(call.Norm.Residual, formula.Bytes(c.ResidualBefore))
	r.write(call.Norm.Weight, formula.Bytes(tr.Weights))
	if tr.Quant != driver.QuantNone {
		r.write(call.Norm.Scales, formula.Bytes(c.ScalesBefore()))
	}
}

// checkOutputs checks the outputs of a rank's call, and the canaries around them.
func (tr *normTrial) checkOutputs(r *rank, call *driver.Call) {
	want := tr.caseOf(r).Want
	expect := func(output uintptr, contents []byte) {
		r.expectBytes(output, contents)
		r.expectFilled(output-canaryCount, canary, canaryCount)
		r.expectFilled(output+uintptr(len(contents)), canary, canaryCount)
	}
	expect(call.Norm.Residual, formula.Bytes(want.Residual))
	isBetweenInputs := tr.InPlace && len(tr.cases) > 1 // without canaries
	if !tr.OnlyQuantized {
		if isBetweenInputs {
			r.expectBytes(call.Recv, formula.Bytes(want.Output))
		} else {
			expect(call.Recv, formula.Bytes(want.Output))
		}
	}

	if tr.Quant == driver.QuantNone || tr.Rows == 0 {
		return
	}

	expect(call.Norm.Quantized, want.Quantized)
	wantScales := formula.Bytes(want.Scales)
	scales := r.read(call.Norm.Scales, int64(len(wantScales)))
	formula.SetCanonicalNaNs(scales) // the bits of NaNs may differ
	r.must(compareBytes(scales, wantScales))
}

// testNorms returns a test that tries random norms on every path that supports them, with and
// without windows. f is the order in which the inputs are added.
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

// tryNorms tries random norms on n ranks.
func tryNorms(t *testing.T, h Harness, f driver.Formula, n int, random *rand.Rand) {
	t.Helper()
	bw, extraBuffers := newNormWorld(t, h, n, options{checkCalls: true, formula: f})
	triedCalls := 0
	for i := range 8 {
		c := formula.RandomNormCase(random, n, maxNormRows)
		if i%3 == 0 {
			c.AddSpecialValues(random) // such as NaN and infinity
		}

		if f != driver.AnyFormula {
			c.SetWant(f)
		}

		if h.skipsTrial(i) {
			continue
		}

		allReduce := []*formula.NormCase{c}
		reduceScatter := scatteredCases(c, f, random)
		for _, cases := range [][]*formula.NormCase{allReduce, reduceScatter} {
			for _, path := range h.Paths {
				tr := &normTrial{
					NormCase: cases[0], cases: cases, path: path, extraBuffers: extraBuffers,
				}
				if path != driver.PathWindow {
					tr.isUnregistered = random.IntN(2) == 0
				}

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

	succeeded := bw.tryOnEachRank(func(r *rank) {
		call := tr.call(bw, r)
		tr.writeInputs(r, &call)
		r.must(r.launchAndWait(r.group, r.stream, call))
		tr.checkOutputs(r, &call)
	})
	if !succeeded {
		bw.t.Fatalf("%v, path %v, unregistered: %v", tr, tr.path, tr.isUnregistered)
	}

	return 1
}

// setSupportedPath sets the path to the first one that supports the call. If there is none, it
// skips the test.
func (tr *normTrial) setSupportedPath(bw *bufferWorld) {
	bw.t.Helper()
	first := bw.ranks[0]
	for _, path := range bw.harness.Paths {
		tr.path = path
		call := tr.call(bw, first)
		if first.group.Offer(call).Refusal(path) == nil {
			return
		}
	}

	bw.t.Skipf("no path supports norms on %d ranks", len(bw.ranks))
}

func testCapturedNorm(t *testing.T, h Harness) {
	bw, extraBuffers := newNormWorld(t, h, min(3, h.Ranks), options{checkCalls: true})
	random := rand.New(rand.NewPCG(3, 3))
	const rows, hidden = 5, 1024
	c := formula.NewNormCase(random, len(bw.ranks), rows, hidden, driver.Float16,
		driver.QuantPerGroup)
	allReduce := []*formula.NormCase{c}
	reduceScatter := c.Scatter(random)
	for _, cases := range [][]*formula.NormCase{allReduce, reduceScatter} {
		tr := &normTrial{NormCase: cases[0], cases: cases, extraBuffers: extraBuffers}
		tr.setSupportedPath(bw)
		tr.captureAndReplay(bw)
	}
}

// captureAndReplay captures the call, and checks several replays.
func (tr *normTrial) captureAndReplay(bw *bufferWorld) {
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
	o := options{checkCalls: true, ignoreCloseErrors: true}
	bw, extraBuffers := newNormWorld(t, h, mismatchRankCount(h), o)
	random := rand.New(rand.NewPCG(4, 4))
	const rows, hidden = 40, 1024
	c := formula.NewNormCase(random, len(bw.ranks), rows, hidden, driver.BFloat16,
		driver.QuantPerRow)
	tr := &normTrial{NormCase: c, cases: []*formula.NormCase{c}, extraBuffers: extraBuffers}
	tr.expectMismatch(bw, func(call *driver.Call) { call.Digest++ })
}

// testNormOperationsDiffer makes rank 1 call AllReduceRMSNorm, and the other ranks
// ReduceScatterRMSNorm. The calls differ only in the operation, which the digest covers.
func testNormOperationsDiffer(t *testing.T, h Harness) {
	o := options{checkCalls: true, ignoreCloseErrors: true}
	bw, extraBuffers := newNormWorld(t, h, mismatchRankCount(h), o)
	random := rand.New(rand.NewPCG(5, 5))
	const rows, hidden = 4, 1024
	c := formula.NewNormCase(random, len(bw.ranks), rows, hidden, driver.BFloat16,
		driver.QuantNone)
	cases := c.Scatter(random)
	tr := &normTrial{NormCase: cases[0], cases: cases, extraBuffers: extraBuffers}
	tr.expectMismatch(bw, func(call *driver.Call) {
		call.Operation = driver.AllReduceRMSNorm
		call.Recv = bw.recv[1].addressAt(canaryCount)
		call.Digest = callDigest(call)
	})
}

// expectMismatch makes a call that change has changed on rank 1. All ranks must get a MismatchError
// and no result.
func (tr *normTrial) expectMismatch(bw *bufferWorld, change func(call *driver.Call)) {
	tr.setSupportedPath(bw)
	bw.onEachRank(func(r *rank) {
		call := tr.call(bw, r)
		tr.writeInputs(r, &call)
		if r.number == 1 {
			change(&call)
		}

		err := r.launchAndWait(r.group, r.stream, call)
		if !isMismatch(err) {
			r.failf("got %v, want a MismatchError", err)
		}

		if call.Path == driver.PathDirect { // its kernels may write poison
			return
		}

		r.expectBytes(call.Norm.Residual, formula.Bytes(tr.caseOf(r).ResidualBefore))
		if tr.Quant != driver.QuantNone {
			r.expectFilled(call.Norm.Quantized, canary, tr.Rows*tr.Hidden)
		}
	})
}
