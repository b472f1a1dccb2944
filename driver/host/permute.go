package host

import (
	"unsafe"

	"symmem/driver"
)

// permutation is a queued Permute or Unpermute. Its slices keep Go memory reachable.
//
// Suppose that this rank received row a for its experts 0 and 1, row b for expert 1 and row c for
// expert 0, each at an index called its place. Permute copies them for each expert: a c a b. Each
// expert computes a row from each copy, and Unpermute adds the weighted results for each place.
// Every row has TopK ids of experts, of which some can be on other ranks.
type permutation struct {
	driver.Permutation
	dispatched []byte             // the received rows; only for Permute
	from       driver.RouteLayout // of dispatched
	rowBytes   int64              // size of a received row
	permuted   []byte             // the copies, and the index of each id's copy
	to         driver.PermutedLayout
	computed   []byte // the computed rows; only for Unpermute
	returned   []byte // the sums of computed rows; only for Unpermute
}

func queuePermute(s driver.Stream, p *driver.Permutation) error {
	own, err := hostStream(s)
	if err != nil {
		return err
	}

	call := newPermutation(p)
	call.rowBytes, _ = p.RowBytes()
	call.from = p.Route.Layout(p.Ranks, call.rowBytes)
	call.dispatched = bytesAt(p.Dispatched, int(call.from.Bytes))
	return own.submit(memoryWork(call.permute), alwaysReady)
}

func queueUnpermute(s driver.Stream, p *driver.Permutation) error {
	own, err := hostStream(s)
	if err != nil {
		return err
	}

	call := newPermutation(p)
	_, computedBytes := p.RowBytes()
	call.computed = bytesAt(p.Computed, int(call.to.Capacity*computedBytes))
	call.returned = bytesAt(p.Returned, p.Ranks*int(p.Route.MaxTokens*computedBytes))
	return own.submit(memoryWork(call.unpermute), alwaysReady)
}

func newPermutation(p *driver.Permutation) *permutation {
	layout := p.Layout()
	return &permutation{
		Permutation: *p, to: layout, permuted: bytesAt(p.Permuted, int(layout.Bytes)),
	}
}

// part returns count elements of memory, beginning at an offset in bytes.
func part[T any](memory []byte, offset, count int64) []T {
	if count == 0 {
		return nil // offset may be the end of memory
	}

	return unsafe.Slice((*T)(unsafe.Pointer(&memory[offset])), count)
}

// permute runs a Permute in two passes: the first counts each expert's copies, the second copies.
func (p *permutation) permute() {
	idCount := int64(p.Ranks) * p.Route.MaxTokens * int64(p.Route.TopK)
	weights := part[float32](p.dispatched, p.from.Weights, idCount)
	permutedWeights := part[float32](p.permuted, p.to.Weights, p.to.Capacity)
	indexes := part[int32](p.permuted, p.to.Places, idCount) // of the copy, by id
	experts := part[int32](p.permuted, p.to.Experts, p.to.Capacity)
	p.readReceived()
	counts := part[int32](p.permuted, p.to.Counts, int64(p.Route.MostExperts(p.Ranks)))
	clear(counts)
	p.visitIDs(func(_ int64, expert int) { counts[expert]++ })
	nextIndexes := p.assignFirstIndexes(counts)
	const none = -1 // for ids without a copy, and for padding between experts
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

func fill(values []int32, value int32) {
	for i := range values {
		values[i] = value
	}
}

// readReceived copies the number of rows from each rank to the output. It clamps the numbers,
// because a wrong one would cause accesses outside the buffers.
func (p *permutation) readReceived() {
	received := p.received()
	for rank, rowCount := range part[int32](p.dispatched, p.from.Counts, int64(p.Ranks)) {
		received[rank] = min(max(rowCount, 0), int32(p.Route.MaxTokens))
	}
}

// received returns the number of rows from each rank, as a slice of the output.
func (p *permutation) received() []int32 {
	return part[int32](p.permuted, p.to.Received, int64(p.Ranks))
}

// visitPlaces calls visit for each place with a row. Each sending rank has MaxTokens places.
func (p *permutation) visitPlaces(visit func(place int64)) {
	for rank, rowCount := range p.received() {
		first := int64(rank) * p.Route.MaxTokens
		for place := first; place < first+int64(rowCount); place++ {
			visit(place)
		}
	}
}

// visitIDs calls visit for each id of an expert on this rank, with the id's index and the expert's
// number on this rank.
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

// assignFirstIndexes returns the index of each expert's first copy. It also stores them in the
// output, followed by the end of the last expert's copies.
func (p *permutation) assignFirstIndexes(counts []int32) (firstIndexes []int32) {
	output := part[int32](p.permuted, p.to.Firsts, int64(len(counts)+1))
	align := int32(p.Align)
	end := int32(0)
	for expert, count := range counts {
		output[expert] = end
		firstIndexes = append(firstIndexes, end)
		aligned := (count + align - 1) / align * align
		end += aligned
	}

	output[len(counts)] = end
	return firstIndexes
}

// copyRow makes the copy with the given index from the row, with its scales, at a place.
func (p *permutation) copyRow(index, place int64) {
	to := p.permuted[p.to.Rows+index*p.rowBytes:]
	copy(to[:p.rowBytes], p.dispatched[p.from.Rows+place*p.rowBytes:])
	scalesBytes := floatBytes * p.Route.Scales
	to = p.permuted[p.to.Scales+index*scalesBytes:]
	copy(to[:scalesBytes], p.dispatched[p.from.Scales+place*scalesBytes:])
}

// unpermute runs an Unpermute. It adds in the order of each row's ids.
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
			if index < 0 { // the expert is on another rank
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

// addProducts adds row*weight to sums. The first products replace sums, which keeps the sign of -0.
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
