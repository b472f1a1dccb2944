package host

import (
	"unsafe"

	"symmem/driver"
)

// queuePermutation queues a Permute or, if returns is set, an Unpermute.
func queuePermutation(s driver.Stream, p *driver.Permutation, returns bool) error {
	own, err := hostStream(s)
	if err != nil {
		return err
	}
	call := &permutation{Permutation: *p, to: p.Layout(), run: (*permutation).permute}
	rowBytes, computedBytes := p.RowBytes()
	call.rowBytes = int(rowBytes)
	call.permuted = bytesAt(p.Permuted, int(call.to.Bytes))
	if returns {
		call.run = (*permutation).unpermute
		call.computed = bytesAt(p.Computed, int(call.to.Capacity*computedBytes))
		call.returned = bytesAt(p.Returned, p.Ranks*int(p.Route.MaxTokens*computedBytes))
	} else {
		call.from = p.Route.Layout(p.Ranks, rowBytes)
		call.dispatched = bytesAt(p.Dispatched, int(call.from.Bytes))
	}
	return own.submit(memoryWork(func() { call.run(call) }), alwaysReady)
}

// permutation is a queued Permute or Unpermute. It refers to the buffers by slices, so that Go
// memory stays reachable.
type permutation struct {
	driver.Permutation
	from                                     driver.RouteLayout
	to                                       driver.PermutedLayout
	rowBytes                                 int
	dispatched, permuted, computed, returned []byte
	run                                      func(*permutation)
}

// part returns the count elements of an array at an offset, in bytes, in memory.
func part[T any](memory []byte, offset, count int64) []T {
	if count == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&memory[offset])), count)
}

// permute computes the output of Permute. It visits all ids twice: first to count the pairs of
// each expert, and then to copy the rows.
func (p *permutation) permute() {
	r, ranks := &p.Route, int64(p.Ranks)
	k := int64(r.TopK)
	ids := part[int32](p.dispatched, p.from.IDs, ranks*r.MaxTokens*k)
	weights := part[float32](p.dispatched, p.from.Weights, int64(len(ids)))
	permutedWeights := part[float32](p.permuted, p.to.Weights, p.to.Capacity)
	places := part[int32](p.permuted, p.to.Places, int64(len(ids)))
	received := part[int32](p.permuted, p.to.Received, ranks)
	for rank, rows := range part[int32](p.dispatched, p.from.Counts, ranks) {
		received[rank] = min(max(rows, 0), int32(r.MaxTokens))
	}
	first := r.FirstExpert(p.Ranks, p.Rank)
	own := r.FirstExpert(p.Ranks, p.Rank+1) - first
	// visitIDs calls visit for each id of the dispatched rows, with its index, and the number of the
	// expert on this rank or -1.
	visitIDs := func(visit func(id int64, expert int)) {
		for rank, rows := range received {
			begin := int64(rank) * r.MaxTokens * k
			for id := begin; id < begin+int64(rows)*k; id++ {
				expert := int(ids[id]) - first
				if expert < 0 || expert >= own {
					expert = -1
				}
				visit(id, expert)
			}
		}
	}
	counts := part[int32](p.permuted, p.to.Counts, int64(r.MostExperts(p.Ranks)))
	clear(counts)
	visitIDs(func(_ int64, expert int) {
		if expert >= 0 {
			counts[expert]++
		}
	})
	next := p.placeExperts(counts)
	for i := range places {
		places[i] = -1
	}
	rows := part[int32](p.permuted, p.to.Experts, p.to.Capacity)
	visitIDs(func(id int64, expert int) {
		if expert < 0 {
			return
		}
		row := next[expert]
		next[expert]++
		places[id] = row
		rows[row] = int32(expert)
		permutedWeights[row] = weights[id]
		p.copyRow(int64(row), id/k)
	})
}

// placeExperts writes and returns the first row of each expert. It sets the expert of every row to
// -1.
func (p *permutation) placeExperts(counts []int32) (next []int32) {
	firsts := part[int32](p.permuted, p.to.Firsts, int64(len(counts)+1))
	end := int32(0)
	for expert, count := range counts {
		firsts[expert] = end
		next = append(next, end)
		end += (count + int32(p.Align) - 1) / int32(p.Align) * int32(p.Align)
	}
	firsts[len(counts)] = end
	rows := part[int32](p.permuted, p.to.Experts, p.to.Capacity)
	for row := range rows {
		rows[row] = -1
	}
	return next
}

func (p *permutation) copyRow(row, place int64) {
	for _, tensor := range [][3]int64{
		{p.to.Rows, p.from.Rows, int64(p.rowBytes)}, {p.to.Scales, p.from.Scales, 4 * p.Route.Scales},
	} {
		to, from, bytes := tensor[0], tensor[1], tensor[2]
		copy(p.permuted[to+row*bytes:][:bytes], p.dispatched[from+place*bytes:])
	}
}

func (p *permutation) unpermute() {
	r, ranks := &p.Route, int64(p.Ranks)
	hidden, k := int(r.Hidden), int64(r.TopK)
	places := part[int32](p.permuted, p.to.Places, ranks*r.MaxTokens*k)
	weights := part[float32](p.permuted, p.to.Weights, p.to.Capacity)
	sums, row := make([]float32, hidden), make([]float32, hidden)
	for rank, rows := range part[int32](p.permuted, p.to.Received, ranks) {
		begin := int64(rank) * r.MaxTokens
		for place := begin; place < begin+int64(rows); place++ {
			clear(sums)
			isFirst := true
			for _, from := range places[place*k : (place+1)*k] {
				if from < 0 {
					continue
				}
				toFloat32(driver.BFloat16, row, matrixRow[uint16](addressOf(p.computed), int(from), hidden))
				for i, v := range row {
					product := float32(v * weights[from]) // prevents a fused multiply-add
					if isFirst {
						sums[i] = product
					} else {
						sums[i] += product
					}
				}
				isFirst = false
			}
			roundRow(driver.BFloat16, sums, matrixRow[uint16](addressOf(p.returned), int(place), hidden))
		}
	}
}
