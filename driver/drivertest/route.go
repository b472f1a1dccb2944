package drivertest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/driver/formula"
)

var routeRequirements = []requirement{
	{"dispatched and combined rows match bit for bit", testRoutes},
	{"a captured dispatch and combine can be replayed with other ids", testCapturedRoutes},
	{"rows are permuted by expert and summed up bit for bit", testPermutations},
	{"captured permutations can be replayed with other ids", testCapturedPermutations},
	{"routes that differ cause a MismatchError", testRoutesDiffer},
}

const routeBufferBytes = 1 << 20

// routeTrial is a Dispatch and a Combine of tokens. Dispatch sends the row of a token to each rank
// that owns an expert of the token. The experts of a rank add the rank's number to the rows that
// they get. Combine returns the new rows, and adds them up.
type routeTrial struct {
	driver.Route
	path           driver.Path
	isUnregistered bool        // the calls have no windows
	counts         []int64     // numbers of tokens by rank
	ids            [][]int32   // TopK for each token, by rank
	weights        [][]float32 // TopK for each token, by rank
	scales         [][]float32 // Route.Scales for each token, by rank
	inputs         []buffer    // by rank, for the ids, weights, scales and rows
}

// The offsets in a rank's input buffer.
const (
	routeIDs     = 0
	routeWeights = routeBufferBytes / 2
	routeScales  = routeBufferBytes
	routeRows    = routeBufferBytes * 3 / 2
)

// newRouteWorld opens n ranks, and draws a trial for them.
func newRouteWorld(
	t *testing.T, h Harness, n int, o options, random *rand.Rand, maxTokens int64,
) (*bufferWorld, *routeTrial) {
	t.Helper()
	bw := newBufferWorld(t, h, n, routeBufferBytes, o)
	tr := &routeTrial{inputs: make([]buffer, n)}
	bw.onEachRank(func(r *rank) { tr.inputs[r.number] = r.newBuffer(2 * routeBufferBytes) })
	tr.draw(random, n, maxTokens)
	return bw, tr
}

// draw draws a shape and tokens. Some ids belong to no expert, and some ranks have no tokens.
func (tr *routeTrial) draw(random *rand.Rand, ranks int, maxTokens int64) {
	tr.Route = driver.Route{
		MaxTokens: maxTokens,
		Hidden:    8 * (1 + random.Int64N(40)),
		Scales:    random.Int64N(4),
		TopK:      1 + random.IntN(driver.MaxTopK),
		Experts:   1 + random.IntN(3*ranks),
	}
	tr.counts = make([]int64, ranks)
	for r := range ranks {
		if random.IntN(4) > 0 {
			tr.counts[r] = 1 + random.Int64N(maxTokens)
		}
	}

	tr.drawTokens(random)
}

// drawTokens draws other tokens of the same shape.
func (tr *routeTrial) drawTokens(random *rand.Rand) {
	tr.ids = nil
	tr.weights = nil
	tr.scales = nil
	for _, count := range tr.counts {
		ids := make([]int32, int(count)*tr.TopK)
		weights := make([]float32, len(ids))
		for i := range ids {
			ids[i] = int32(random.IntN(tr.Experts+3) - 1) // from -1 to Experts+1
			weights[i] = random.Float32()
		}

		scales := make([]float32, count*tr.Scales)
		for i := range scales {
			scales[i] = random.Float32()
		}

		tr.ids = append(tr.ids, ids)
		tr.weights = append(tr.weights, weights)
		tr.scales = append(tr.scales, scales)
	}
}

func (tr *routeTrial) String() string {
	return fmt.Sprintf("%s of %d elements for tokens %v, path %v, unregistered: %v", tr.Describe(),
		tr.Hidden, tr.counts, tr.path, tr.isUnregistered)
}

// owner returns the rank that owns an expert, or -1 if there is no such expert.
func (tr *routeTrial) owner(id int32) int { return tr.Owner(len(tr.counts), int(id)) }

// sentTo lists the tokens of rank src that have an expert on rank dst.
func (tr *routeTrial) sentTo(src, dst int) []int64 {
	var tokens []int64
	isOnDst := func(id int32) bool { return tr.owner(id) == dst }
	for token := range tr.counts[src] {
		ids := tr.ids[src][int(token)*tr.TopK:][:tr.TopK]
		if slices.ContainsFunc(ids, isOnDst) {
			tokens = append(tokens, token)
		}
	}

	return tokens
}

// element returns element i of the input row of a token of rank src. It is a small integer, so that
// sums are exact.
func element(src int, token int64, i int) float32 {
	return float32((7*src + 3*int(token) + i) % 16)
}

// row returns the input row of a token of rank src.
func (tr *routeTrial) row(src int, token int64) []byte {
	const plus = 0
	return tr.computedRow(src, token, plus)
}

// computedRow returns the input row of a token with plus added to each element.
func (tr *routeTrial) computedRow(src int, token int64, plus int) []byte {
	row := make([]float32, tr.Hidden)
	for i := range row {
		row[i] = element(src, token, i) + float32(plus)
	}

	return bfloat16s(row)
}

// bfloat16s encodes integers below 256 as bfloat16, which represents them exactly.
func bfloat16s(values []float32) []byte {
	var data []byte
	for _, v := range values {
		bits := uint16(math.Float32bits(v) >> 16)
		data = binary.LittleEndian.AppendUint16(data, bits)
	}

	return data
}

// int32s encodes numbers.
func int32s(values []int32) []byte {
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, uint32(v))
	}

	return data
}

// call returns a rank's Dispatch or Combine.
func (tr *routeTrial) call(bw *bufferWorld, r *rank, o driver.Operation) driver.Call {
	input, send, recv := tr.inputs[r.number], bw.send[r.number], bw.recv[r.number]
	route := tr.Route // a copy
	route.Tokens = tr.counts[r.number]
	route.IDs = input.addressAt(routeIDs)
	route.Weights = input.addressAt(routeWeights)
	route.RowScales = input.addressAt(routeScales)
	call := driver.Call{
		Operation: o, DataType: driver.BFloat16, Count: tr.MaxTokens * tr.Hidden, Path: tr.path,
		Recv: recv.addressAt(canaryCount), Route: &route,
	}
	if o == driver.Dispatch {
		call.Send = input.addressAt(routeRows)
		call.RecvWindow = recv.window
	} else {
		call.Send = send.addressAt(canaryCount)
		call.SendWindow = send.window
	}

	if tr.isUnregistered {
		call.SendWindow = nil
		call.RecvWindow = nil
	}

	call.Digest = callDigest(&call)
	return call
}

// writeInputs writes the inputs of a rank's call, and canaries to and around its output.
func (tr *routeTrial) writeInputs(r *rank, call *driver.Call) {
	_, outputBytes := call.Spans(len(tr.counts), r.number)
	r.must(r.stream.Fill(call.Recv-canaryCount, canary, outputBytes+2*canaryCount))
	r.write(call.Route.IDs, int32s(tr.ids[r.number]))
	if call.Operation == driver.Combine {
		tr.writeComputedRows(r, call)
		return
	}

	r.write(call.Route.Weights, formula.Bytes(tr.weights[r.number]))
	r.write(call.Route.RowScales, formula.Bytes(tr.scales[r.number]))
	var rows []byte
	for token := range tr.counts[r.number] {
		rows = append(rows, tr.row(r.number, token)...)
	}

	r.write(call.Send, rows)
}

// writeComputedRows writes the rows that the experts of rank r compute, to the send buffer of a
// Combine.
func (tr *routeTrial) writeComputedRows(r *rank, call *driver.Call) {
	sendBytes, _ := call.Spans(len(tr.counts), r.number)
	rows := bytes.Repeat([]byte{canary}, int(sendBytes))
	rowBytes := bfloat16Bytes * tr.Hidden
	for src := range tr.counts {
		for i, token := range tr.sentTo(src, r.number) {
			place := int64(src)*tr.MaxTokens + int64(i)
			copy(rows[place*rowBytes:], tr.computedRow(src, token, r.number))
		}
	}

	r.write(call.Send, rows)
}

// checkOutputs checks the output of a rank's call, and the canaries around it.
func (tr *routeTrial) checkOutputs(r *rank, call *driver.Call) {
	_, outputBytes := call.Spans(len(tr.counts), r.number)
	got := r.read(call.Recv-canaryCount, outputBytes+2*canaryCount)
	edge := bytes.Repeat([]byte{canary}, canaryCount)
	r.must(compareBytes(got[:canaryCount], edge))
	r.must(compareBytes(got[canaryCount+outputBytes:], edge))
	output := got[canaryCount:][:outputBytes]
	if call.Operation == driver.Combine {
		r.must(compareBytes(output, tr.combined(r.number)))
		return
	}

	tr.checkDispatched(r, output)
}

// combined returns the rows that a Combine must return to a rank.
func (tr *routeTrial) combined(rank int) []byte {
	var sentTo [][]int64 // tokens of this rank, by destination
	for dst := range tr.counts {
		sentTo = append(sentTo, tr.sentTo(rank, dst))
	}

	var rows []byte
	for token := range tr.counts[rank] {
		sums := make([]float32, tr.Hidden)
		for dst, tokens := range sentTo {
			if !slices.Contains(tokens, token) {
				continue
			}

			for i := range sums {
				sums[i] += element(rank, token, i) + float32(dst)
			}
		}

		rows = append(rows, bfloat16s(sums)...)
	}

	return rows
}

// checkDispatched checks the output of a Dispatch on rank r.
func (tr *routeTrial) checkDispatched(r *rank, got []byte) {
	ranks := len(tr.counts)
	layout := tr.Layout(ranks, bfloat16Bytes*tr.Hidden)
	// expect checks an entry of the array that begins at an offset.
	expect := func(array, index int64, want []byte) {
		size := int64(len(want))
		r.must(compareBytes(got[array+index*size:][:size], want))
	}
	noIDs := int32s(slices.Repeat([]int32{-1}, tr.TopK))
	counts := make([]int32, ranks+1)
	for src := range ranks {
		tokens := tr.sentTo(src, r.number)
		counts[src] = int32(len(tokens))
		for i := range tr.MaxTokens {
			place := int64(src)*tr.MaxTokens + i
			if i >= int64(len(tokens)) { // without a row
				expect(layout.IDs, place, noIDs)
				continue
			}

			token := tokens[i]
			first := int(token) * tr.TopK // index of the token's first id
			ids := tr.ids[src][first:][:tr.TopK]
			weights := tr.weights[src][first:][:tr.TopK]
			scales := tr.scales[src][token*tr.Scales:][:tr.Scales]
			expect(layout.Rows, place, tr.row(src, token))
			expect(layout.Weights, place, formula.Bytes(weights))
			expect(layout.Scales, place, formula.Bytes(scales))
			expect(layout.IDs, place, int32s(tr.ownIDs(r.number, ids)))
		}
	}

	for _, id := range tr.ids[r.number] {
		if id != -1 && tr.owner(id) < 0 { // belongs to no expert
			counts[ranks]++
		}
	}

	const onlyEntry = 0 // counts is one entry of its array
	expect(layout.Counts, onlyEntry, int32s(counts))
}

// ownIDs returns a copy of ids in which the experts of other ranks are replaced by -1.
func (tr *routeTrial) ownIDs(rank int, ids []int32) []int32 {
	own := slices.Clone(ids)
	for i, id := range own {
		if tr.owner(id) != rank {
			own[i] = -1
		}
	}

	return own
}

var routeOperations = []driver.Operation{driver.Dispatch, driver.Combine}

// testRoutes tries random shapes on every path that supports them, with and without windows.
func testRoutes(t *testing.T, h Harness) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	for n := 1; n <= min(4, h.Ranks); n++ {
		const firstMaxTokens = 1 // of a trial that is not used
		bw, tr := newRouteWorld(t, h, n, options{checkCalls: true}, random, firstMaxTokens)
		triedCalls := 0
		for i, maxTokens := range []int64{1, 3, 40, 40, 120} {
			tr.draw(random, n, maxTokens)
			if h.skipsTrial(i) {
				continue
			}

			for _, path := range h.Paths {
				tr.path = path
				tr.isUnregistered = path != driver.PathWindow && random.IntN(2) == 0
				for _, o := range routeOperations {
					triedCalls += tr.run(bw, o)
				}

				tr.drawTokens(random) // a combine may follow the dispatch of other tokens
				triedCalls += tr.run(bw, driver.Combine)
			}
		}

		if triedCalls == 0 && n > 1 { // GPUs have no direct path in a group of one rank
			t.Errorf("no path supports routes on %d ranks", n)
		}
	}
}

// run makes the call, unless the path refuses it. It returns the number of calls made.
func (tr *routeTrial) run(bw *bufferWorld, o driver.Operation) int {
	bw.t.Helper()
	first := bw.ranks[0]
	refusal := first.group.Offer(tr.call(bw, first, o)).Refusal(tr.path)
	if refusal != nil {
		wantError(bw.t, tr.String(), refusal, driver.ErrUnsupported)
		return 0
	}

	succeeded := bw.tryOnEachRank(func(r *rank) {
		call := tr.call(bw, r, o)
		tr.writeInputs(r, &call)
		r.must(r.launchAndWait(r.group, r.stream, call))
		tr.checkOutputs(r, &call)
	})
	if !succeeded {
		bw.t.Fatalf("%v %v", o, tr)
	}

	return 1
}

// setSupportedPath sets the path to the first one that supports the calls. If there is none, it
// skips the test.
func (tr *routeTrial) setSupportedPath(bw *bufferWorld) {
	bw.t.Helper()
	first := bw.ranks[0]
	for _, path := range bw.harness.Paths {
		tr.path = path
		call := tr.call(bw, first, driver.Dispatch)
		if first.group.Offer(call).Refusal(path) == nil {
			return
		}
	}

	bw.t.Skipf("no path supports routes on %d ranks", len(bw.ranks))
}

func testCapturedRoutes(t *testing.T, h Harness) {
	random := rand.New(rand.NewPCG(5, 5))
	const maxTokens = 20
	bw, tr := newRouteWorld(t, h, min(3, h.Ranks), options{checkCalls: true}, random, maxTokens)
	tr.setSupportedPath(bw)
	graphs := make([][]driver.Graph, len(bw.ranks)) // by rank, in the order of routeOperations
	bw.onEachRank(func(r *rank) {
		for _, o := range routeOperations {
			call := tr.call(bw, r, o)
			g := r.capture(func() { r.must(r.queueCall(r.group, r.stream, call)) })
			graphs[r.number] = append(graphs[r.number], g)
		}
	})
	for round := range 3 {
		tr.drawTokens(random)
		bw.onEachRank(func(r *rank) {
			r.setStep("round %d", round)
			for i, o := range routeOperations {
				call := tr.call(bw, r, o)
				tr.writeInputs(r, &call)
				r.must(graphs[r.number][i].Launch(r.stream))
				r.must(r.stream.Synchronize(bw.ctx))
				tr.checkOutputs(r, &call)
			}
		})
	}
}

func testRoutesDiffer(t *testing.T, h Harness) {
	for _, o := range routeOperations {
		t.Run(o.String(), func(t *testing.T) {
			random := rand.New(rand.NewPCG(6, 6))
			faults := options{checkCalls: true, ignoreCloseErrors: true}
			const maxTokens = 20
			bw, tr := newRouteWorld(t, h, mismatchRankCount(h), faults, random, maxTokens)
			tr.setSupportedPath(bw)
			bw.onEachRank(func(r *rank) {
				call := tr.call(bw, r, o)
				tr.writeInputs(r, &call)
				if r.number == 1 {
					call.Digest++
				}

				err := r.launchAndWait(r.group, r.stream, call)
				if !isMismatch(err) {
					r.failf("%v: got %v, want a MismatchError", o, err)
				}
			})
		})
	}
}
