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
	"symmem/internal/reduce"
)

// permuteTrial is a Permute and an Unpermute. Permute sorts the rows that a rank has received in a
// Dispatch by expert. Unpermute adds up the rows that the experts compute. The trial uses random
// data instead of the output of a Dispatch. The calls use only the memory of one rank, so the group
// of the Dispatch may have more ranks than the test.
type permuteTrial struct {
	driver.Permutation
	device   driver.Permuter
	counts   []int32 // numbers of rows by source rank
	ids      []int32 // TopK ids of experts for each place (possible row), or -1
	input    []byte  // contents of Dispatched
	computed []byte  // contents of Computed
}

const permuteBufferBytes = 24 << 20 // enough for each buffer of the largest shape

func newPermuteTrial(r *rank, random *rand.Rand) *permuteTrial {
	device, isPermuter := r.device.(driver.Permuter)
	if !isPermuter {
		r.failf("the device is no driver.Permuter")
	}

	tr := &permuteTrial{device: device}
	buffers := []*uintptr{&tr.Dispatched, &tr.Permuted, &tr.Computed, &tr.Returned}
	for _, address := range buffers {
		*address = r.newBuffer(permuteBufferBytes).addressAt(canaryCount)
	}

	tr.draw(random)
	return tr
}

// pick returns a random element of options.
func pick[T any](random *rand.Rand, options ...T) T { return options[random.IntN(len(options))] }

// draw draws a random shape and random data.
func (tr *permuteTrial) draw(random *rand.Rand) {
	tr.Ranks = 1 + random.IntN(8)
	tr.Rank = random.IntN(tr.Ranks)
	tr.DataType = pick(random, driver.BFloat16, driver.Uint8)
	tr.Align = pick[int64](random, 1, 3, 8, 128, 128, 200)
	tokenLimit := pick[int64](random, 1, 5, 80, 150)
	tr.Route = driver.Route{
		MaxTokens: 1 + random.Int64N(tokenLimit),
		Hidden:    16 * (1 + random.Int64N(5)),
		Scales:    random.Int64N(4),
		TopK:      1 + random.IntN(driver.MaxTopK),
		Experts:   pick(random, 1+random.IntN(64), driver.MaxExperts),
	}
	if random.IntN(4) == 0 { // a few long rows
		tr.Route.Hidden = 16 * (100 + random.Int64N(100))
		tr.Route.MaxTokens = 1 + random.Int64N(4)
		tr.Route.TopK = min(tr.Route.TopK, 4)
		tr.Route.Experts = min(tr.Route.Experts, 10)
	}

	tr.drawRows(random)
}

// drawRows draws random data of the same shape.
func (tr *permuteTrial) drawRows(random *rand.Rand) {
	rowBytes, computedRowBytes := tr.RowBytes()
	layout := tr.Route.Layout(tr.Ranks, rowBytes)
	tr.input = make([]byte, layout.Bytes)
	for i := range tr.input {
		tr.input[i] = byte(random.Uint32())
	}

	tr.drawIDs(random)
	copy(tr.input[layout.IDs:], int32s(tr.ids))
	copy(tr.input[layout.Counts:], int32s(tr.counts))
	weights := make([]float32, len(tr.ids))
	for i := range weights {
		weights[i] = random.Float32()
	}

	copy(tr.input[layout.Weights:], formula.Bytes(weights))
	tr.computed = nil
	for range tr.Layout().Capacity * computedRowBytes / bfloat16Bytes {
		bits := reduce.BFloat16Bits(random.Float32() - 0.5)
		if random.IntN(8) == 0 {
			bits = 0x8000 // -0, which remains if it is the only product
		}

		tr.computed = binary.LittleEndian.AppendUint16(tr.computed, bits)
	}
}

const bfloat16Bytes = 2

// drawIDs draws tr.counts and tr.ids. A third of the time, all ids are the same.
func (tr *permuteTrial) drawIDs(random *rand.Rand) {
	first := tr.Route.FirstExpert(tr.Ranks, tr.Rank)
	ownExperts := tr.Route.FirstExpert(tr.Ranks, tr.Rank+1) - first // number of this rank's experts
	const none = -1
	onlyID := none // unless it is none, the id of all rows
	if random.IntN(3) == 0 && ownExperts > 0 {
		onlyID = first + random.IntN(ownExperts)
	}

	drawID := func() int {
		switch {
		case onlyID != none:
			return onlyID
		case ownExperts > 0 && random.IntN(3) > 0:
			return first + random.IntN(ownExperts)
		default:
			return none
		}
	}
	tr.counts = nil
	tr.ids = nil
	topK := int64(tr.Route.TopK)
	for range tr.Ranks {
		rows := random.Int64N(tr.Route.MaxTokens + 1)
		if random.IntN(4) == 0 {
			rows = pick(random, 0, tr.Route.MaxTokens)
		}

		tr.counts = append(tr.counts, int32(rows))
		for range rows * topK {
			tr.ids = append(tr.ids, int32(drawID()))
		}

		for range (tr.Route.MaxTokens - rows) * topK { // places without a row
			tr.ids = append(tr.ids, none)
		}
	}
}

func (tr *permuteTrial) String() string {
	return fmt.Sprintf("%s, %d scales, rows of %d %v, %v by source, on rank %d, aligned to %d",
		tr.Route.Describe(), tr.Route.Scales, tr.Route.Hidden, tr.DataType, tr.counts, tr.Rank, tr.Align)
}

// wantPermuted returns the output of Permute, with canaries in the places that it does not write.
func (tr *permuteTrial) wantPermuted() []byte {
	from := tr.dispatchedLayout()
	to := tr.Layout()
	want := bytes.Repeat([]byte{canary}, int(to.Bytes))
	// setWord sets a number in the array that begins at an offset.
	setWord := func(array, index int64, value int32) {
		binary.LittleEndian.PutUint32(want[array+4*index:], uint32(value))
	}
	// copyEntry copies an entry of an array of Dispatched to an entry of an array of Permuted.
	copyEntry := func(toArray, toIndex, fromArray, fromIndex, size int64) {
		copy(want[toArray+toIndex*size:][:size], tr.input[fromArray+fromIndex*size:])
	}
	for row := range to.Capacity {
		setWord(to.Experts, row, -1)
	}

	for i := range tr.ids {
		setWord(to.Places, int64(i), -1)
	}

	copy(want[to.Received:], int32s(tr.counts))
	rowBytes, _ := tr.RowBytes()
	first := int32(tr.Route.FirstExpert(tr.Ranks, tr.Rank))
	row := int64(0) // next row of the output
	experts := int64(tr.Route.MostExperts(tr.Ranks))
	for expert := range experts {
		row = tr.alignRow(row)
		setWord(to.Firsts, expert, int32(row))
		count := int32(0)
		for i, id := range tr.ids {
			if id != first+int32(expert) {
				continue
			}

			place := int64(i / tr.Route.TopK)
			setWord(to.Places, int64(i), int32(row))
			setWord(to.Experts, row, int32(expert))
			copyEntry(to.Weights, row, from.Weights, int64(i), 4)
			copyEntry(to.Rows, row, from.Rows, place, rowBytes)
			copyEntry(to.Scales, row, from.Scales, place, 4*tr.Route.Scales)
			count++
			row++
		}

		setWord(to.Counts, expert, count)
	}

	setWord(to.Firsts, experts, int32(tr.alignRow(row)))
	return want
}

// dispatchedLayout returns the layout of Dispatched.
func (tr *permuteTrial) dispatchedLayout() driver.RouteLayout {
	rowBytes, _ := tr.RowBytes()
	return tr.Route.Layout(tr.Ranks, rowBytes)
}

// alignRow rounds a row up to a multiple of Align.
func (tr *permuteTrial) alignRow(row int64) int64 {
	return (row + tr.Align - 1) / tr.Align * tr.Align
}

// wantReturned returns the output of Unpermute after a Permute with the given output. It contains
// canaries in the places that Unpermute does not write.
func (tr *permuteTrial) wantReturned(permuted []byte) []byte {
	hidden := int(tr.Route.Hidden)
	places := tr.Ranks * int(tr.Route.MaxTokens)
	want := bytes.Repeat([]byte{canary}, places*hidden*bfloat16Bytes)
	for rank, rows := range tr.counts {
		first := rank * int(tr.Route.MaxTokens) // place of the rank's first row
		for place := first; place < first+int(rows); place++ {
			for i, sum := range tr.weightedSum(permuted, place) {
				at := (place*hidden + i) * bfloat16Bytes
				binary.LittleEndian.PutUint16(want[at:], reduce.BFloat16Bits(sum))
			}
		}
	}

	return want
}

// weightedSum returns the sum of the computed rows of a place, multiplied by their weights. The
// order is that of the ids. Without a computed row, the sum is 0.
func (tr *permuteTrial) weightedSum(permuted []byte, place int) []float32 {
	layout := tr.Layout()
	word := func(array int64, index int) uint32 {
		return binary.LittleEndian.Uint32(permuted[int(array)+4*index:])
	}
	sums := make([]float32, tr.Route.Hidden)
	isFirst := true
	for k := range tr.Route.TopK {
		row := int32(word(layout.Places, place*tr.Route.TopK+k))
		if row < 0 { // the id is no expert of this rank
			continue
		}

		weight := math.Float32frombits(word(layout.Weights, int(row)))
		for i := range sums {
			at := (int(row)*len(sums) + i) * bfloat16Bytes
			value := reduce.BFloat16Value(binary.LittleEndian.Uint16(tr.computed[at:]))
			product := float32(value * weight) // the conversion prevents a fused addition
			if isFirst {
				sums[i] = product // not 0 + product, which differs for -0
			} else {
				sums[i] += product
			}
		}

		isFirst = false
	}

	return sums
}

// write writes the inputs, and fills the outputs with canaries.
func (tr *permuteTrial) write(r *rank) {
	r.write(tr.Dispatched, tr.input)
	r.write(tr.Computed, tr.computed)
	for _, returns := range []bool{false, true} {
		output := tr.output(returns)
		r.must(r.stream.Fill(output.Address-canaryCount, canary, output.Bytes+2*canaryCount))
	}
}

// output returns the memory that Unpermute writes if returns is set, and otherwise the memory that
// Permute writes.
func (tr *permuteTrial) output(returns bool) driver.Span {
	spans := tr.Spans(returns)
	return spans[len(spans)-1]
}

// queue queues both calls.
func (tr *permuteTrial) queue(r *rank) {
	for _, returns := range []bool{false, true} {
		r.must(tr.Validate(returns))
	}

	r.must(tr.device.Permute(r.stream, &tr.Permutation))
	r.must(tr.device.Unpermute(r.stream, &tr.Permutation))
}

// check checks both outputs, and the canaries around them.
func (tr *permuteTrial) check(r *rank) {
	permuted := tr.wantPermuted()
	returned := tr.wantReturned(permuted)
	edge := bytes.Repeat([]byte{canary}, canaryCount)
	for _, returns := range []bool{false, true} {
		want := permuted
		if returns {
			want = returned
		}

		output := tr.output(returns)
		r.setStep("%s rows of %v", output.Name, tr)
		r.expectBytes(output.Address-canaryCount, slices.Concat(edge, want, edge))
	}
}

// testPermutations tries random shapes. The bytes that the calls do not write must not change.
func testPermutations(t *testing.T, h Harness) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 3))
	w := newWorld(t, h, 1, options{noGroup: true})
	w.onEachRank(func(r *rank) {
		tr := newPermuteTrial(r, random)
		for i := range 24 {
			tr.draw(random)
			if !h.skipsTrial(i) {
				tr.write(r)
				tr.queue(r)
				tr.check(r)
			}
		}
	})
}

func testCapturedPermutations(t *testing.T, h Harness) {
	random := rand.New(rand.NewPCG(7, 7))
	w := newWorld(t, h, 1, options{noGroup: true})
	w.onEachRank(func(r *rank) {
		tr := newPermuteTrial(r, random)
		graph := r.capture(func() { tr.queue(r) })
		for range 3 {
			tr.drawRows(random)
			tr.write(r)
			r.must(graph.Launch(r.stream))
			r.must(r.stream.Synchronize(r.world.ctx))
			tr.check(r)
		}
	})
}
