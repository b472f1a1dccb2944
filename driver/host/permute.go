package host

import (
	"unsafe"

	"symmem/driver"
)

// permutation is a queued Permute or Unpermute. It refers to the buffers by slices, so that Go
// memory stays reachable.
//
// Suppose that this rank owns the experts 0 and 1, and that a Dispatch has stored three rows in
// places of its output. Row a is for both experts, row b for expert 1, and row c for expert 0.
// Permute copies each row once for each of its experts, and sorts the copies by expert: a c a b.
// The experts compute a row from each copy, and each copy has a weight. Unpermute multiplies the
// computed rows by the weights, and adds up those from copies of the same row. It stores the sum in
// the place of the row, in another buffer.
//
// A row has TopK ids. Each id is that of an expert on this rank, or is ignored.
type permutation struct {
	driver.Permutation
	dispatched []byte             // input of Permute: the output of the Dispatch
	from       driver.RouteLayout // layout of dispatched; zero in an Unpermute
	rowBytes   int64              // size of a dispatched row
	permuted   []byte             // output of Permute: the copies, and the index of each id's copy
	to         driver.PermutedLayout
	computed   []byte // input of Unpermute: a computed row for each copy
	returned   []byte // output of Unpermute
}

// queuePermutation queues a Permute or, if isUnpermute is set, an Unpermute.
func queuePermutation(s driver.Stream, p *driver.Permutation, isUnpermute bool) error {
	own, err := hostStream(s)
	if err != nil {
		return err
	}

	rowBytes, computedBytes := p.RowBytes()
	call := &permutation{Permutation: *p, to: p.Layout(), rowBytes: rowBytes}
	call.permuted = bytesAt(p.Permuted, int(call.to.Bytes))
	run := call.permute
	if isUnpermute {
		run = call.unpermute
		call.computed = bytesAt(p.Computed, int(call.to.Capacity*computedBytes))
		call.returned = bytesAt(p.Returned, p.Ranks*int(p.Route.MaxTokens*computedBytes))
	} else {
		call.from = p.Route.Layout(p.Ranks, rowBytes)
		call.dispatched = bytesAt(p.Dispatched, int(call.from.Bytes))
	}

	return own.submit(memoryWork(run), alwaysReady)
}

// part returns count elements of an array in memory. offset, in bytes, is that of the first.
func part[T any](memory []byte, offset, count int64) []T {
	if count == 0 {
		return nil // offset may be the end of memory
	}

	return unsafe.Slice((*T)(unsafe.Pointer(&memory[offset])), count)
}

// permute runs a Permute. It visits all ids twice: first to count the copies for each expert, and
// then to make them.
func (p *permutation) permute() {
	idCount := int64(p.Ranks) * p.Route.MaxTokens * int64(p.Route.TopK)
	weights := part[float32](p.dispatched, p.from.Weights, idCount)
	permutedWeights := part[float32](p.permuted, p.to.Weights, p.to.Capacity)
	indexes := part[int32](p.permuted, p.to.Places, idCount) // the copy of each id
	experts := part[int32](p.permuted, p.to.Experts, p.to.Capacity)
	p.readReceived()
	counts := part[int32](p.permuted, p.to.Counts, int64(p.Route.MostExperts(p.Ranks)))
	clear(counts)
	p.visitIDs(func(_ int64, expert int) { counts[expert]++ })
	nextIndexes := p.placeExperts(counts)
	const none = -1 // for ids without a copy, and for unused rows
	fill(indexes, none)
	fill(experts, none)
	p.visitIDs(func(id int64, expert int) {
		index := nextIndexes[expert]
		nextIndexes[expert]++
		indexes[id] = index
		experts[index] = int32(expert)
		permutedWeights[index] = weights[id]
		place := id / int64(p.Route.TopK)
		p.copyRow(int64(index), place)
	})
}

// fill sets all values.
func fill(values []int32, value int32) {
	for i := range values {
		values[i] = value
	}
}

// readReceived copies the number of dispatched rows of each sending rank to the output. It keeps
// the number between 0 and MaxTokens, because a wrong one would cause accesses outside the buffers.
func (p *permutation) readReceived() {
	received := p.received()
	for rank, rowCount := range part[int32](p.dispatched, p.from.Counts, int64(p.Ranks)) {
		received[rank] = min(max(rowCount, 0), int32(p.Route.MaxTokens))
	}
}

// received returns the number of dispatched rows of each sending rank.
func (p *permutation) received() []int32 {
	return part[int32](p.permuted, p.to.Received, int64(p.Ranks))
}

// visitPlaces calls visit for each place with a row. Rows of sending rank r are at the places
// r*MaxTokens, r*MaxTokens+1 and so on.
func (p *permutation) visitPlaces(visit func(place int64)) {
	for rank, rowCount := range p.received() {
		first := int64(rank) * p.Route.MaxTokens
		for place := first; place < first+int64(rowCount); place++ {
			visit(place)
		}
	}
}

// visitIDs calls visit for each id of a dispatched row that is an expert of this rank. id is the
// index of the id among all ids, and expert is the number of the expert on this rank, from 0.
func (p *permutation) visitIDs(visit func(id int64, expert int)) {
	firstExpert := p.Route.FirstExpert(p.Ranks, p.Rank)
	expertCount := p.Route.FirstExpert(p.Ranks, p.Rank+1) - firstExpert
	idsPerRow := int64(p.Route.TopK)
	ids := part[int32](p.dispatched, p.from.IDs, int64(p.Ranks)*p.Route.MaxTokens*idsPerRow)
	p.visitPlaces(func(place int64) {
		for id := place * idsPerRow; id < (place+1)*idsPerRow; id++ {
			expert := int(ids[id]) - firstExpert
			isOnThisRank := expert >= 0 && expert < expertCount
			if isOnThisRank {
				visit(id, expert)
			}
		}
	})
}

// placeExperts stores the index of each expert's first copy, and the end of the last expert's rows,
// in the output. counts holds the number of copies for each expert. It returns the first indexes.
func (p *permutation) placeExperts(counts []int32) (firstIndexes []int32) {
	output := part[int32](p.permuted, p.to.Firsts, int64(len(counts)+1))
	align := int32(p.Align)
	end := int32(0)
	for expert, count := range counts {
		output[expert] = end
		firstIndexes = append(firstIndexes, end)
		end += (count + align - 1) / align * align // rounded up to a multiple of align
	}

	output[len(counts)] = end
	return firstIndexes
}

// copyRow copies the dispatched row at a place, and its scales, to the copy with the given index.
func (p *permutation) copyRow(index, place int64) {
	to := p.permuted[p.to.Rows+index*p.rowBytes:]
	copy(to[:p.rowBytes], p.dispatched[p.from.Rows+place*p.rowBytes:])
	scalesBytes := floatBytes * p.Route.Scales
	to = p.permuted[p.to.Scales+index*scalesBytes:]
	copy(to[:scalesBytes], p.dispatched[p.from.Scales+place*scalesBytes:])
}

// unpermute runs an Unpermute. For each dispatched row, it adds up the rows computed from its
// copies, multiplied by their weights, in the order of the row's ids.
func (p *permutation) unpermute() {
	hidden := int(p.Route.Hidden)
	idsPerRow := int64(p.Route.TopK)
	idCount := int64(p.Ranks) * p.Route.MaxTokens * idsPerRow
	indexes := part[int32](p.permuted, p.to.Places, idCount)
	weights := part[float32](p.permuted, p.to.Weights, p.to.Capacity)
	sums, row := make([]float32, hidden), make([]float32, hidden)
	p.visitPlaces(func(place int64) {
		clear(sums)
		isFirst := true
		for _, index := range indexes[place*idsPerRow : (place+1)*idsPerRow] {
			hasCopy := index >= 0
			if !hasCopy { // the id is not an expert of this rank
				continue
			}

			computed := matrixRow[uint16](addressOf(p.computed), int(index), hidden)
			toFloat32(driver.BFloat16, row, computed)
			addProducts(sums, row, weights[index], isFirst)
			isFirst = false
		}

		returned := matrixRow[uint16](addressOf(p.returned), int(place), hidden)
		roundRow(driver.BFloat16, sums, returned)
	})
}

// addProducts multiplies row by a weight, and adds the products to sums. The first products replace
// sums. Unlike 0+product, this keeps the sign of -0.
func addProducts(sums, row []float32, weight float32, isFirst bool) {
	for i, v := range row {
		product := float32(v * weight) // prevents a fused multiply-add
		if isFirst {
			sums[i] = product
		} else {
			sums[i] += product
		}
	}
}
