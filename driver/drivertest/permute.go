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

// permuteTrial is a Permute and an Unpermute of random data in place of the output of a Dispatch.
// Its group may be larger than the world, because the calls use only the memory of one rank.
type permuteTrial struct {
	driver.Permutation
	device   driver.Permuter
	counts   []int32 // numbers of rows by source rank
	ids      []int32 // TopK ids for each place
	input    []byte  // contents of Dispatched
	computed []byte  // contents of Computed
}

const permuteBufferBytes = 24 << 20

func newPermuteTrial(r *rank, random *rand.Rand) *permuteTrial {
	tr := &permuteTrial{}
	var isPermuter bool
	tr.device, isPermuter = r.device.(driver.Permuter)
	if !isPermuter {
		r.failf("the device is no driver.Permuter")
	}
	var addresses [4]uintptr
	for i := range addresses {
		addresses[i] = r.newBuffer(permuteBufferBytes).addressAt(canaryCount)
	}
	tr.Dispatched, tr.Permuted = addresses[0], addresses[1]
	tr.Computed, tr.Returned = addresses[2], addresses[3]
	tr.draw(random)
	return tr
}

// draw draws a random shape and random data.
func (tr *permuteTrial) draw(random *rand.Rand) {
	tr.Ranks = 1 + random.IntN(8)
	tr.Rank = random.IntN(tr.Ranks)
	tr.DataType = []driver.DataType{driver.BFloat16, driver.Uint8}[random.IntN(2)]
	tr.Align = []int64{1, 3, 8, 128, 128, 200}[random.IntN(6)]
	tr.Route = driver.Route{
		MaxTokens: 1 + random.Int64N([]int64{1, 5, 80, 150}[random.IntN(4)]),
		Hidden:    16 * (1 + random.Int64N(5)), Scales: random.Int64N(4),
		TopK:    1 + random.IntN(driver.MaxTopK),
		Experts: []int{1 + random.IntN(64), driver.MaxExperts}[random.IntN(2)],
	}
	if random.IntN(4) == 0 { // a few long rows
		tr.Route.Hidden, tr.Route.MaxTokens = 16*(100+random.Int64N(100)), 1+random.Int64N(4)
		tr.Route.TopK, tr.Route.Experts = min(tr.Route.TopK, 4), min(tr.Route.Experts, 10)
	}
	tr.drawRows(random)
}

// drawRows draws random data of the same shape. A third of the time, all ids are the same.
func (tr *permuteTrial) drawRows(random *rand.Rand) {
	first := tr.Route.FirstExpert(tr.Ranks, tr.Rank)
	own := tr.Route.FirstExpert(tr.Ranks, tr.Rank+1) - first
	rowBytes, computedBytes := tr.RowBytes()
	layout := tr.Route.Layout(tr.Ranks, rowBytes)
	tr.input = make([]byte, layout.Bytes)
	for i := range tr.input {
		tr.input[i] = byte(random.Uint32())
	}
	onlyID := -1 // unless it is -1, the id of all rows
	if random.IntN(3) == 0 && own > 0 {
		onlyID = first + random.IntN(own)
	}
	tr.counts, tr.ids = nil, nil
	for range tr.Ranks {
		rows := random.Int64N(tr.Route.MaxTokens + 1)
		if random.IntN(4) == 0 {
			rows = []int64{0, tr.Route.MaxTokens}[random.IntN(2)]
		}
		tr.counts = append(tr.counts, int32(rows))
		for i := range tr.Route.MaxTokens * int64(tr.Route.TopK) {
			id := -1
			switch {
			case i >= rows*int64(tr.Route.TopK): // a place without a row
			case onlyID >= 0:
				id = onlyID
			case own > 0 && random.IntN(3) > 0:
				id = first + random.IntN(own)
			}
			tr.ids = append(tr.ids, int32(id))
		}
	}
	copy(tr.input[layout.IDs:], int32s(tr.ids))
	copy(tr.input[layout.Counts:], int32s(tr.counts))
	weights := make([]float32, len(tr.ids))
	for i := range weights {
		weights[i] = random.Float32()
	}
	copy(tr.input[layout.Weights:], formula.Bytes(weights))
	tr.computed = nil
	for range tr.Layout().Capacity * computedBytes / 2 {
		bits := reduce.BFloat16Bits(random.Float32() - 0.5)
		if random.IntN(8) == 0 {
			bits = 0x8000 // -0, which remains if it is the only product
		}
		tr.computed = binary.LittleEndian.AppendUint16(tr.computed, bits)
	}
}

func (tr *permuteTrial) String() string {
	return fmt.Sprintf("%s, %d scales, rows of %d %v, %v by source, on rank %d, aligned to %d",
		tr.Route.Describe(), tr.Route.Scales, tr.Route.Hidden, tr.DataType, tr.counts, tr.Rank, tr.Align)
}

// wantPermuted returns the output of Permute, with canaries in the places that it does not write.
func (tr *permuteTrial) wantPermuted() []byte {
	rowBytes, _ := tr.RowBytes()
	from, to := tr.Route.Layout(tr.Ranks, rowBytes), tr.Layout()
	want := bytes.Repeat([]byte{canary}, int(to.Bytes))
	set := func(offset int64, values ...int32) { copy(want[offset:], int32s(values)) }
	for row := range to.Capacity {
		set(to.Experts+4*row, -1)
	}
	for i := range tr.ids {
		set(to.Places+4*int64(i), -1)
	}
	set(to.Received, tr.counts...)
	first := int32(tr.Route.FirstExpert(tr.Ranks, tr.Rank))
	row := int64(0) // of the output
	for expert := range int32(tr.Route.MostExperts(tr.Ranks)) {
		row = (row + tr.Align - 1) / tr.Align * tr.Align
		set(to.Firsts+4*int64(expert), int32(row))
		count := int32(0)
		for i, id := range tr.ids {
			if id != first+expert {
				continue
			}
			place := int64(i / tr.Route.TopK)
			set(to.Places+4*int64(i), int32(row))
			set(to.Experts+4*row, expert)
			copy(want[to.Weights+4*row:][:4], tr.input[from.Weights+4*int64(i):])
			copy(want[to.Rows+row*rowBytes:][:rowBytes], tr.input[from.Rows+place*rowBytes:])
			scaleBytes := 4 * tr.Route.Scales
			copy(want[to.Scales+row*scaleBytes:][:scaleBytes], tr.input[from.Scales+place*scaleBytes:])
			count++
			row++
		}
		set(to.Counts+4*int64(expert), count)
	}
	row = (row + tr.Align - 1) / tr.Align * tr.Align
	set(to.Firsts+4*int64(tr.Route.MostExperts(tr.Ranks)), int32(row))
	return want
}

// wantReturned returns the output of Unpermute after a Permute with the given output. It contains
// canaries in the places that Unpermute does not write.
func (tr *permuteTrial) wantReturned(permuted []byte) []byte {
	to, hidden := tr.Layout(), int(tr.Route.Hidden)
	word := func(at int64) uint32 { return binary.LittleEndian.Uint32(permuted[at:]) }
	want := bytes.Repeat([]byte{canary}, tr.Ranks*int(tr.Route.MaxTokens)*2*hidden)
	for rank, rows := range tr.counts {
		for place := int64(rank) * tr.Route.MaxTokens; rows > 0; place, rows = place+1, rows-1 {
			sums := make([]float32, hidden)
			isFirst := true
			for k := range int64(tr.Route.TopK) {
				row := int32(word(to.Places + 4*(place*int64(tr.Route.TopK)+k)))
				if row < 0 {
					continue
				}
				weight := math.Float32frombits(word(to.Weights + 4*int64(row)))
				for i := range sums {
					at := 2 * (int(row)*hidden + i)
					v := reduce.BFloat16Value(binary.LittleEndian.Uint16(tr.computed[at:]))
					product := float32(v * weight)
					if !isFirst {
						product += sums[i]
					}
					sums[i] = product
				}
				isFirst = false
			}
			for i, sum := range sums {
				at := 2 * (int(place)*hidden + i)
				binary.LittleEndian.PutUint16(want[at:], reduce.BFloat16Bits(sum))
			}
		}
	}
	return want
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

// output returns the memory that Permute or, if returns is set, Unpermute writes.
func (tr *permuteTrial) output(returns bool) driver.Span {
	spans := tr.Spans(returns)
	return spans[len(spans)-1]
}

func (tr *permuteTrial) queue(r *rank) {
	for _, returns := range []bool{false, true} {
		r.must(tr.Validate(returns))
	}
	r.must(tr.device.Permute(r.stream, &tr.Permutation))
	r.must(tr.device.Unpermute(r.stream, &tr.Permutation))
}

func (tr *permuteTrial) check(r *rank) {
	permuted := tr.wantPermuted()
	edge := bytes.Repeat([]byte{canary}, canaryCount)
	for i, want := range [][]byte{permuted, tr.wantReturned(permuted)} {
		returns := i == 1
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
	newWorld(t, h, 1, options{noGroup: true}).onEachRank(func(r *rank) {
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
	newWorld(t, h, 1, options{noGroup: true}).onEachRank(func(r *rank) {
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
