package host

import (
	"unsafe"

	"symmem/driver"
)

// permutation is a queued Permute or Unpermute. Its slices keep the memory at the addresses in
// driver.Permutation reachable.
//
// Permute copies each received row to the experts of the row's TopK ids:
//
//	received rows   a for experts 0 and 1, b for expert 1, c for expert 0
//	copies          a, c for expert 0, then a, b for expert 1
//
// Each expert computes a row from each copy, and Unpermute adds the weighted results for each
// received row. The place of a row is its index in dispatched, which has MaxTokens places for each
// sending rank.
type permutation struct {
	driver.Permutation
	dispatched       []byte             // the received rows; only for Permute
	dispatchedLayout driver.RouteLayout // offsets in dispatched
	rowBytes         int64              // size of a received row
	permuted         []byte             // the copies, and data for Unpermute
	permutedLayout   driver.PermutedLayout
	computed         []byte // the computed rows; only for Unpermute
	returned         []byte // the sums of computed rows; only for Unpermute
}

func queuePermute(s driver.Stream, p *driver.Permutation) error {
	target, err := hostStream(s)
	if err != nil {
		return err
	}

	call := newPermutation(p)
	rowBytes, _ := p.RowBytes()
	call.rowBytes = rowBytes
	call.dispatchedLayout = p.Route.Layout(p.Ranks, rowBytes)
	call.dispatched = bytesAt(p.Dispatched, int(call.dispatchedLayout.Bytes))
	return target.submit(memoryWork(call.permute), alwaysReady)
}

func queueUnpermute(s driver.Stream, p *driver.Permutation) error {
	target, err := hostStream(s)
	if err != nil {
		return err
	}

	call := newPermutation(p)
	_, computedRowBytes := p.RowBytes()
	call.computed = bytesAt(p.Computed, int(call.permutedLayout.Capacity*computedRowBytes))
	call.returned = bytesAt(p.Returned, p.Ranks*int(p.Route.MaxTokens*computedRowBytes))
	return target.submit(memoryWork(call.unpermute), alwaysReady)
}

func newPermutation(p *driver.Permutation) *permutation {
	layout := p.Layout()
	return &permutation{
		Permutation: *p, permutedLayout: layout, permuted: bytesAt(p.Permuted, int(layout.Bytes)),
	}
}

// elements returns count elements of memory, from an offset in bytes.
func elements[T any](memory []byte, offset, count int64) []T {
	if count == 0 {
		return nil // memory[offset] may not exist
	}

	return unsafe.Slice((*T)(unsafe.Pointer(&memory[offset])), count)
}

// idCount returns the number of expert ids for which dispatched has space.
func (p *permutation) idCount() int64 {
	places := int64(p.Ranks) * p.Route.MaxTokens
	return places * int64(p.Route.TopK)
}

func (p *permutation) permute() {
	p.storeRowCounts()
	counts := p.storeCopyCounts()
	firstIndexes := p.assignFirstIndexes(counts)
	p.copyRows(firstIndexes)
}

// storeCopyCounts counts each expert's copies in a slice of p.permuted, which it returns.
func (p *permutation) storeCopyCounts() []int32 {
	experts := int64(p.Route.MostExperts(p.Ranks))
	counts := elements[int32](p.permuted, p.permutedLayout.Counts, experts)
	clear(counts)
	p.visitIDs(func(_ int64, localExpert int) { counts[localExpert]++ })
	return counts
}

// copyRows copies each row to the next index of each of its experts. It changes nextIndexes.
func (p *permutation) copyRows(nextIndexes []int32) {
	idCount, capacity := p.idCount(), p.permutedLayout.Capacity
	weights := elements[float32](p.dispatched, p.dispatchedLayout.Weights, idCount)
	permutedWeights := elements[float32](p.permuted, p.permutedLayout.Weights, capacity)
	copyIndexes := elements[int32](p.permuted, p.permutedLayout.Places, idCount) // by id
	expertsOfCopies := elements[int32](p.permuted, p.permutedLayout.Experts, capacity)
	const none = -1
	fill(copyIndexes, none)
	fill(expertsOfCopies, none)
	p.visitIDs(func(idIndex int64, localExpert int) {
		copyIndex := nextIndexes[localExpert]
		nextIndexes[localExpert]++
		copyIndexes[idIndex] = copyIndex
		expertsOfCopies[copyIndex] = int32(localExpert)
		permutedWeights[copyIndex] = weights[idIndex]
		place := idIndex / int64(p.Route.TopK)
		p.copyRow(int64(copyIndex), place)
	})
}

func fill(values []int32, value int32) {
	for i := range values {
		values[i] = value
	}
}

// storeRowCounts stores the number of rows from each rank for rowCounts. It clamps wrong numbers,
// which would cause accesses outside the buffers.
func (p *permutation) storeRowCounts() {
	storedCounts := p.rowCounts()
	receivedCounts := elements[int32](p.dispatched, p.dispatchedLayout.Counts, int64(p.Ranks))
	for rank, rowCount := range receivedCounts {
		storedCounts[rank] = min(max(rowCount, 0), int32(p.Route.MaxTokens))
	}
}

// rowCounts returns the number of rows from each rank, as a slice of p.permuted.
func (p *permutation) rowCounts() []int32 {
	return elements[int32](p.permuted, p.permutedLayout.Received, int64(p.Ranks))
}

// visitPlaces calls visit for each place with a row.
func (p *permutation) visitPlaces(visit func(place int64)) {
	for rank, rowCount := range p.rowCounts() {
		first := int64(rank) * p.Route.MaxTokens
		for i := range int64(rowCount) {
			visit(first + i)
		}
	}
}

// visitIDs calls visit for each received id of this rank's experts. localExpert is 0 for the first
// of these experts.
func (p *permutation) visitIDs(visit func(idIndex int64, localExpert int)) {
	firstExpert := p.Route.FirstExpert(p.Ranks, p.Rank)
	endExpert := p.Route.FirstExpert(p.Ranks, p.Rank+1)
	idsPerRow := int64(p.Route.TopK)
	ids := elements[int32](p.dispatched, p.dispatchedLayout.IDs, p.idCount())
	p.visitPlaces(func(place int64) {
		first := place * idsPerRow
		for i, id := range ids[first : first+idsPerRow] {
			isOnThisRank := int(id) >= firstExpert && int(id) < endExpert
			if isOnThisRank {
				visit(first+int64(i), int(id)-firstExpert)
			}
		}
	})
}

// assignFirstIndexes returns the index of each expert's first copy. It also stores these indexes,
// and the end of the last expert's padded copies, in p.permuted.
func (p *permutation) assignFirstIndexes(counts []int32) (firstIndexes []int32) {
	stored := elements[int32](p.permuted, p.permutedLayout.Firsts, int64(len(counts)+1))
	align := int32(p.Align)
	end := int32(0)
	for expert, count := range counts {
		stored[expert] = end
		firstIndexes = append(firstIndexes, end)
		paddedCount := (count + align - 1) / align * align
		end += paddedCount
	}

	stored[len(counts)] = end
	return firstIndexes
}

// copyRow copies a received row and its scales.
func (p *permutation) copyRow(copyIndex, place int64) {
	to := p.permuted[p.permutedLayout.Rows+copyIndex*p.rowBytes:]
	copy(to[:p.rowBytes], p.dispatched[p.dispatchedLayout.Rows+place*p.rowBytes:])
	scalesBytes := floatBytes * p.Route.Scales
	to = p.permuted[p.permutedLayout.Scales+copyIndex*scalesBytes:]
	copy(to[:scalesBytes], p.dispatched[p.dispatchedLayout.Scales+place*scalesBytes:])
}

// unpermute adds in the order of each row's ids, because the order affects the rounding.
func (p *permutation) unpermute() {
	hidden := int(p.Route.Hidden)
	idsPerRow := int64(p.Route.TopK)
	copyIndexes := elements[int32](p.permuted, p.permutedLayout.Places, p.idCount())
	weights := elements[float32](p.permuted, p.permutedLayout.Weights, p.permutedLayout.Capacity)
	sums, row := make([]float32, hidden), make([]float32, hidden)
	p.visitPlaces(func(place int64) {
		clear(sums)
		isFirst := true
		for _, index := range copyIndexes[place*idsPerRow : (place+1)*idsPerRow] {
			if index < 0 { // the expert is on another rank
				continue
			}

			computed := matrixRow[uint16](addressOf(p.computed), int(index), hidden)
			toFloat32(driver.BFloat16, row, computed)
			if isFirst { // adding to the cleared sums would change -0 to 0
				storeProducts(sums, row, weights[index])
				isFirst = false
				continue
			}

			addProducts(sums, row, weights[index])
		}

		returned := matrixRow[uint16](addressOf(p.returned), int(place), hidden)
		roundAndStore(driver.BFloat16, sums, returned)
	})
}

func storeProducts(products, row []float32, weight float32) {
	for i, v := range row {
		products[i] = v * weight
	}
}

func addProducts(sums, row []float32, weight float32) {
	for i, v := range row {
		product := float32(v * weight) // the conversion prevents a fused multiply-add
		sums[i] += product
	}
}
