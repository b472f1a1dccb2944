package host

import (
	"unsafe"

	"symmem/driver"
)

// queuePermutation queues a Permute or, if returns is set, an Unpermute.
//
// A Dispatch has sent rows to the ranks of their experts, and each row can be for several experts.
// Permute copies the rows, once for each expert of this rank, so that the rows of one expert are
// adjacent. Unpermute returns the experts' results to the places of the dispatched rows.
func queuePermutation(s driver.Stream, p *driver.Permutation, returns bool) error {
	own, err := hostStream(s)
	if err != nil {
		return err
	}

	rowBytes, computedBytes := p.RowBytes()
	call := &permutation{Permutation: *p, to: p.Layout(), rowBytes: rowBytes}
	call.permuted = bytesAt(p.Permuted, int(call.to.Bytes))
	run := call.permute
	if returns {
		run = call.unpermute
		call.computed = bytesAt(p.Computed, int(call.to.Capacity*computedBytes))
		call.returned = bytesAt(p.Returned, p.Ranks*int(p.Route.MaxTokens*computedBytes))
	} else {
		call.from = p.Route.Layout(p.Ranks, rowBytes)
		call.dispatched = bytesAt(p.Dispatched, int(call.from.Bytes))
	}

	return own.submit(memoryWork(run), alwaysReady)
}

// permutation is a queued Permute or Unpermute. It refers to the buffers by slices, so that Go
// memory stays reachable.
type permutation struct {
	driver.Permutation
	from       driver.RouteLayout    // layout of dispatched; zero in an Unpermute
	to         driver.PermutedLayout // layout of permuted
	rowBytes   int64                 // size of a dispatched row
	dispatched []byte                // input of Permute
	permuted   []byte                // output of Permute, and its record for Unpermute
	computed   []byte                // input of Unpermute: a result for each permuted row
	returned   []byte                // output of Unpermute
}

// part returns count elements of an array in memory. offset, in bytes, is that of the first.
func part[T any](memory []byte, offset, count int64) []T {
	if count == 0 {
		return nil // offset may be the end of memory
	}

	return unsafe.Slice((*T)(unsafe.Pointer(&memory[offset])), count)
}

// permute runs a Permute. It visits all ids twice: first to count the rows of each expert, and then
// to copy the rows.
func (p *permutation) permute() {
	r, ranks := &p.Route, int64(p.Ranks)
	k := int64(r.TopK)
	ids := part[int32](p.dispatched, p.from.IDs, ranks*r.MaxTokens*k)
	weights := part[float32](p.dispatched, p.from.Weights, int64(len(ids)))
	permutedWeights := part[float32](p.permuted, p.to.Weights, p.to.Capacity)
	places := part[int32](p.permuted, p.to.Places, int64(len(ids)))
	received := part[int32](p.permuted, p.to.Received, ranks)
	for rank, rowCount := range part[int32](p.dispatched, p.from.Counts, ranks) {
		// A wrong count in the input must not cause an access outside the buffers.
		received[rank] = min(max(rowCount, 0), int32(r.MaxTokens))
	}

	firstExpert := r.FirstExpert(p.Ranks, p.Rank)
	expertCount := r.FirstExpert(p.Ranks, p.Rank+1) - firstExpert
	// visitIDs calls visit for each id of the dispatched rows that belongs to an expert on this
	// rank. i is the index of the id, and expert the number of the expert on this rank, from 0.
	visitIDs := func(visit func(i int64, expert int)) {
		for rank, rowCount := range received {
			begin := int64(rank) * r.MaxTokens * k
			for i := begin; i < begin+int64(rowCount)*k; i++ {
				expert := int(ids[i]) - firstExpert
				if expert >= 0 && expert < expertCount {
					visit(i, expert)
				}
			}
		}
	}
	counts := part[int32](p.permuted, p.to.Counts, int64(r.MostExperts(p.Ranks)))
	clear(counts)
	visitIDs(func(_ int64, expert int) { counts[expert]++ })
	nextRows := p.placeExperts(counts)
	for i := range places {
		places[i] = -1
	}

	experts := part[int32](p.permuted, p.to.Experts, p.to.Capacity)
	for row := range experts {
		experts[row] = -1 // rows between the experts stay unused
	}

	visitIDs(func(i int64, expert int) {
		row := nextRows[expert]
		nextRows[expert]++
		places[i] = row
		experts[row] = int32(expert)
		permutedWeights[row] = weights[i]
		place := i / k // each dispatched row has k ids
		p.copyRow(int64(row), place)
	})
}

// placeExperts stores the first row of each expert, and the end of the last expert's rows, in the
// output. counts holds the numbers of rows. It returns a copy of the first rows.
func (p *permutation) placeExperts(counts []int32) []int32 {
	output := part[int32](p.permuted, p.to.Firsts, int64(len(counts)+1))
	align := int32(p.Align)
	var firstRows []int32
	end := int32(0)
	for expert, count := range counts {
		output[expert] = end
		firstRows = append(firstRows, end)
		end += (count + align - 1) / align * align
	}

	output[len(counts)] = end
	return firstRows
}

// copyRow copies the dispatched row at a place, and its scales, to a row of the output.
func (p *permutation) copyRow(row, place int64) {
	to := p.permuted[p.to.Rows+row*p.rowBytes:]
	copy(to[:p.rowBytes], p.dispatched[p.from.Rows+place*p.rowBytes:])
	scalesBytes := floatBytes * p.Route.Scales
	to = p.permuted[p.to.Scales+row*scalesBytes:]
	copy(to[:scalesBytes], p.dispatched[p.from.Scales+place*scalesBytes:])
}

// unpermute runs an Unpermute. For each dispatched row, it adds up the experts' results, multiplied
// by their weights, in the order of the row's ids.
func (p *permutation) unpermute() {
	r, ranks := &p.Route, int64(p.Ranks)
	hidden, k := int(r.Hidden), int64(r.TopK)
	places := part[int32](p.permuted, p.to.Places, ranks*r.MaxTokens*k)
	weights := part[float32](p.permuted, p.to.Weights, p.to.Capacity)
	sums, row := make([]float32, hidden), make([]float32, hidden)
	for rank, rowCount := range part[int32](p.permuted, p.to.Received, ranks) {
		begin := int64(rank) * r.MaxTokens
		for place := begin; place < begin+int64(rowCount); place++ {
			clear(sums)
			isFirst := true
			for _, permutedRow := range places[place*k : (place+1)*k] {
				if permutedRow < 0 {
					continue // the id belongs to no expert on this rank
				}

				computed := matrixRow[uint16](addressOf(p.computed), int(permutedRow), hidden)
				toFloat32(driver.BFloat16, row, computed)
				for i, v := range row {
					product := float32(v * weights[permutedRow]) // prevents a fused multiply-add
					if isFirst {
						sums[i] = product // unlike 0+product, this keeps the sign of -0
					} else {
						sums[i] += product
					}
				}

				isFirst = false
			}

			returned := matrixRow[uint16](addressOf(p.returned), int(place), hidden)
			roundRow(driver.BFloat16, sums, returned)
		}
	}
}
