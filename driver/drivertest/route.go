package drivertest

import (
	"bytes"
	"encoding/binary"
	"errors"
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

// routeTrial is a dispatch and a combine. The experts of a rank add the rank's number to the rows
// that they get.
type routeTrial struct {
	driver.Route
	path           driver.Path
	isUnregistered bool
	counts         []int64     // tokens by rank
	ids            [][]int32   // by rank
	weights        [][]float32 // by rank
	scales         [][]float32 // by rank
	inputs         []buffer    // by rank
}

// The offsets in a rank's input buffer.
const (
	routeIDs = iota * routeBufferBytes / 2
	routeWeights
	routeScales
	routeRows
)

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
		MaxTokens: maxTokens, Hidden: 8 * (1 + random.Int64N(40)), Scales: random.Int64N(4),
		TopK: 1 + random.IntN(driver.MaxTopK), Experts: 1 + random.IntN(3*ranks),
	}
	tr.counts = make([]int64, ranks)
	for r := range ranks {
		if random.IntN(4) > 0 {
			tr.counts[r] = 1 + random.Int64N(maxTokens)
		}
	}
	tr.drawTokens(random)
}

func (tr *routeTrial) drawTokens(random *rand.Rand) {
	tr.ids, tr.weights, tr.scales = nil, nil, nil
	for _, count := range tr.counts {
		ids, weights := make([]int32, int(count)*tr.TopK), make([]float32, int(count)*tr.TopK)
		for i := range ids {
			ids[i], weights[i] = int32(random.IntN(tr.Experts+3)-1), random.Float32()
		}
		scales := make([]float32, count*tr.Scales)
		for i := range scales {
			scales[i] = random.Float32()
		}
		tr.ids, tr.weights = append(tr.ids, ids), append(tr.weights, weights)
		tr.scales = append(tr.scales, scales)
	}
}

func (tr *routeTrial) String() string {
	return fmt.Sprintf("%s of %d elements for tokens %v, path %v, unregistered: %v", tr.Describe(),
		tr.Hidden, tr.counts, tr.path, tr.isUnregistered)
}

// sentTo lists the tokens of rank src that have an expert on rank dst.
func (tr *routeTrial) sentTo(src, dst int) (tokens []int64) {
	for token := range tr.counts[src] {
		ids := tr.ids[src][int(token)*tr.TopK:][:tr.TopK]
		isSent := func(id int32) bool { return tr.Owner(len(tr.counts), int(id)) == dst }
		if slices.ContainsFunc(ids, isSent) {
			tokens = append(tokens, token)
		}
	}
	return tokens
}

// row returns a token's input row, with plus added to each element. Elements are small integers.
func (tr *routeTrial) row(src int, token int64, plus int) []byte {
	row := make([]float32, tr.Hidden)
	for i := range row {
		row[i] = float32((7*src+3*int(token)+i)%16 + plus)
	}
	return bfloat16s(row)
}

// bfloat16s encodes integers below 256 as bfloat16, which represents them exactly.
func bfloat16s(values []float32) (data []byte) {
	for _, v := range values {
		data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(v)>>16))
	}
	return data
}

func int32s(values []int32) (data []byte) {
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, uint32(v))
	}
	return data
}

func (tr *routeTrial) call(bw *bufferWorld, r *rank, o driver.Operation) driver.Call {
	route, input := tr.Route, tr.inputs[r.number]
	route.Tokens = tr.counts[r.number]
	route.IDs = input.addressAt(routeIDs)
	route.Weights, route.RowScales = input.addressAt(routeWeights), input.addressAt(routeScales)
	send, recv := bw.send[r.number], bw.recv[r.number]
	call := driver.Call{
		Operation: o, DataType: driver.BFloat16, Count: tr.MaxTokens * tr.Hidden, Path: tr.path,
		Send: input.addressAt(routeRows), Recv: recv.addressAt(canaryCount), RecvWindow: recv.window,
		Route: &route,
	}
	if o == driver.Combine {
		call.Send, call.SendWindow = send.addressAt(canaryCount), send.window
		call.RecvWindow = nil
	}
	if tr.isUnregistered {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	call.Digest = callDigest(&call)
	return call
}

func (tr *routeTrial) writeInputs(r *rank, call *driver.Call) {
	_, bytes := call.Spans(len(tr.counts), r.number)
	r.must(r.stream.Fill(call.Recv-canaryCount, canary, bytes+2*canaryCount))
	r.write(call.Route.IDs, int32s(tr.ids[r.number]))
	if call.Operation == driver.Combine {
		tr.writeComputedRows(r, call)
		return
	}
	r.write(call.Route.Weights, formula.Bytes(tr.weights[r.number]))
	r.write(call.Route.RowScales, formula.Bytes(tr.scales[r.number]))
	var rows []byte
	for token := range tr.counts[r.number] {
		rows = append(rows, tr.row(r.number, token, 0)...)
	}
	r.write(call.Send, rows)
}

func (tr *routeTrial) writeComputedRows(r *rank, call *driver.Call) {
	send, _ := call.Spans(len(tr.counts), r.number)
	rows := bytes.Repeat([]byte{canary}, int(send))
	for src := range tr.counts {
		for place, token := range tr.sentTo(src, r.number) {
			at := (int64(src)*tr.MaxTokens + int64(place)) * 2 * tr.Hidden
			copy(rows[at:], tr.row(src, token, r.number))
		}
	}
	r.write(call.Send, rows)
}

func (tr *routeTrial) checkOutputs(r *rank, call *driver.Call) {
	_, size := call.Spans(len(tr.counts), r.number)
	got := r.read(call.Recv-canaryCount, size+2*canaryCount)
	edge := bytes.Repeat([]byte{canary}, canaryCount)
	r.must(compareBytes(got[:canaryCount], edge))
	r.must(compareBytes(got[canaryCount+size:], edge))
	got = got[canaryCount:][:size]
	if call.Operation == driver.Combine {
		r.must(compareBytes(got, tr.combined(r.number)))
		return
	}
	tr.checkDispatched(r, got)
}

// combined returns the rows that a combine must return to a rank. Sums of small integers are exact.
func (tr *routeTrial) combined(rank int) (rows []byte) {
	var destinations [][]int64
	for dst := range tr.counts {
		destinations = append(destinations, tr.sentTo(rank, dst))
	}
	for token := range tr.counts[rank] {
		sums := make([]float32, tr.Hidden)
		for dst, tokens := range destinations {
			if !slices.Contains(tokens, token) {
				continue
			}
			for i := range sums {
				sums[i] += float32((7*rank+3*int(token)+i)%16 + dst)
			}
		}
		rows = append(rows, bfloat16s(sums)...)
	}
	return rows
}

func (tr *routeTrial) checkDispatched(r *rank, got []byte) {
	layout := tr.Layout(len(tr.counts), 2*tr.Hidden)
	counts := make([]int32, len(tr.counts)+1)
	for _, id := range tr.ids[r.number] {
		if id != -1 && tr.Owner(len(tr.counts), int(id)) < 0 {
			counts[len(tr.counts)]++
		}
	}
	for src := range tr.counts {
		tokens := tr.sentTo(src, r.number)
		counts[src] = int32(len(tokens))
		for place := range tr.MaxTokens {
			at := int64(src)*tr.MaxTokens + place
			expect := func(offset int64, want []byte) {
				size := int64(len(want))
				r.must(compareBytes(got[offset+at*size:][:size], want))
			}
			ids := slices.Repeat([]int32{-1}, tr.TopK)
			if place < int64(len(tokens)) {
				token := tokens[place]
				words := int(token) * tr.TopK
				for i, id := range tr.ids[src][words:][:tr.TopK] {
					if tr.Owner(len(tr.counts), int(id)) == r.number {
						ids[i] = id
					}
				}
				expect(layout.Rows, tr.row(src, token, 0))
				expect(layout.Weights, formula.Bytes(tr.weights[src][words:][:tr.TopK]))
				expect(layout.Scales, formula.Bytes(tr.scales[src][token*tr.Scales:][:tr.Scales]))
			}
			expect(layout.IDs, int32s(ids))
		}
	}
	want := int32s(counts)
	r.must(compareBytes(got[layout.Counts:][:len(want)], want))
}

var routeOperations = []driver.Operation{driver.Dispatch, driver.Combine}

// testRoutes tries random shapes on every path that supports them, with and without windows.
func testRoutes(t *testing.T, h Harness) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	for n := 1; n <= min(4, h.Ranks); n++ {
		bw, tr := newRouteWorld(t, h, n, options{checkCalls: true}, random, 1)
		triedCalls := 0
		for i, maxTokens := range []int64{1, 3, 40, 40, 120} {
			tr.draw(random, n, maxTokens)
			if h.skipsTrial(i) {
				continue
			}
			for _, tr.path = range h.Paths {
				tr.isUnregistered = tr.path != driver.PathWindow && random.IntN(2) == 0
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
	if refusal := first.group.Offer(tr.call(bw, first, o)).Refusal(tr.path); refusal != nil {
		wantError(bw.t, tr.String(), refusal, driver.ErrUnsupported)
		return 0
	}
	if !bw.tryOnEachRank(func(r *rank) {
		call := tr.call(bw, r, o)
		tr.writeInputs(r, &call)
		r.must(r.launchAndWait(r.group, r.stream, call))
		tr.checkOutputs(r, &call)
	}) {
		bw.t.Fatalf("%v %v", o, tr)
	}
	return 1
}

func (tr *routeTrial) setSupportedPath(bw *bufferWorld) {
	bw.t.Helper()
	first := bw.ranks[0]
	for _, tr.path = range bw.harness.Paths {
		if first.group.Offer(tr.call(bw, first, driver.Dispatch)).Refusal(tr.path) == nil {
			return
		}
	}
	bw.t.Skipf("no path supports routes on %d ranks", len(bw.ranks))
}

func testCapturedRoutes(t *testing.T, h Harness) {
	random := rand.New(rand.NewPCG(5, 5))
	bw, tr := newRouteWorld(t, h, min(3, h.Ranks), options{checkCalls: true}, random, 20)
	tr.setSupportedPath(bw)
	graphs := make([][]driver.Graph, len(bw.ranks))
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
			faults := options{checkCalls: true, allowFaults: true}
			bw, tr := newRouteWorld(t, h, mismatchRankCount(h), faults, random, 20)
			tr.setSupportedPath(bw)
			bw.onEachRank(func(r *rank) {
				call := tr.call(bw, r, o)
				tr.writeInputs(r, &call)
				if r.number == 1 {
					call.Digest++
				}
				var mismatch *driver.MismatchError
				if err := r.launchAndWait(r.group, r.stream, call); !errors.As(err, &mismatch) {
					r.failf("%v: got %v, want a MismatchError", o, err)
				}
			})
		})
	}
}
