package host

import (
	"encoding/binary"
	"unsafe"

	"symmem/driver"
)

// routedPlan holds the fields of a plan for a Dispatch or a Combine, which run the exchanges of a
// mixture-of-experts layer. Each rank owns some of the experts. Each token has a row of numbers and
// the ids of the experts that shall process it.
//
// Dispatch sends each token to the ranks that own its experts: an inner AllGather collects the
// tokens of all ranks, and each rank keeps those of its experts. Combine returns the computed rows:
// an inner AllToAll exchanges them, and each rank adds up the rows of each of its tokens.
type routedPlan struct {
	inner    plan         // the AllGather or AllToAll
	call     *driver.Call // the Dispatch or Combine
	ranks    int          // size of the group
	rank     int          // group rank of this process
	rowBytes int          // size of a token's row
	owners   []int8       // group ranks by expert; a group has fewer than 128 ranks
	send     []byte       // input of the AllGather; nil in a Combine, which sends the caller's buffer
	recv     []byte       // output of inner
}

// isDispatch reports whether the call is a Dispatch. Otherwise, it is a Combine.
func (r *routedPlan) isDispatch() bool { return r.send != nil }

// headerBytes is the size of the header of a rank's gathered part: its number of tokens.
const headerBytes = 8

// newRoutedPlan allocates the buffers of a Dispatch or a Combine, and prepares its inner plan.
func newRoutedPlan(p *plan) *routedPlan {
	route, c := p.Route, p.comm
	r := &routedPlan{
		call: &p.Call, ranks: c.Size(), rank: c.cfg.Rank,
		rowBytes: int(route.Hidden) * p.DataType.Size(),
	}
	for expert := range route.Experts {
		r.owners = append(r.owners, int8(route.Owner(r.ranks, expert)))
	}

	r.inner = plan{comm: c, partCount: 1, Call: driver.Call{Digest: p.Digest}}
	inner := &r.inner.Call
	if p.Operation == driver.Dispatch {
		partBytes := headerBytes + int(route.MaxTokens)*r.tokenBytes()
		r.send = make([]byte, partBytes)
		r.recv = make([]byte, r.ranks*partBytes)
		inner.Operation = driver.AllGather
		inner.DataType = driver.Uint8
		inner.Count = int64(partBytes)
		inner.Send = addressOf(r.send)
	} else {
		r.recv = make([]byte, r.ranks*int(route.MaxTokens)*r.rowBytes)
		inner.Operation = driver.AllToAll
		inner.DataType = p.DataType
		inner.Count = p.Count
		inner.Send = p.Send
	}

	inner.Recv = addressOf(r.recv)
	r.inner.setSizes()
	return r
}

// addressOf returns the address of b, which must not be empty.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// bytesAt returns the memory at an address as a slice, or nil if count is 0.
func bytesAt(address uintptr, count int) []byte {
	if count == 0 {
		return nil
	}

	return unsafe.Slice((*byte)(pointer(address)), count)
}

// Sizes of a float32 scale or weight and of an int32 id.
const (
	floatBytes = 4
	idBytes    = 4
)

// tokenBytes returns the size of a token's row, scales, weights and ids.
func (r *routedPlan) tokenBytes() int {
	bytes := 0
	for _, part := range r.parts() {
		bytes += part.bytes
	}

	return bytes
}

// pack fills the input of the AllGather: the number of this rank's tokens, all rows, all scales,
// all weights, and all ids. In a Combine, it does nothing.
func (r *routedPlan) pack() {
	if !r.isDispatch() {
		return
	}

	route := r.call.Route
	binary.LittleEndian.PutUint64(r.send, uint64(route.Tokens))
	rest := r.send[headerBytes:]
	for _, part := range r.parts() {
		n := copy(rest, bytesAt(part.from, int(route.Tokens)*part.bytes))
		rest = rest[n:]
	}
}

// routedPart is a tensor that Dispatch copies. It has an entry for each token.
type routedPart struct {
	from  uintptr // address of this rank's tensor
	bytes int     // size of an entry
	to    int64   // offset in the receive buffer; see driver.RouteLayout
}

// The ids are the last tensor of a Dispatch.
const (
	tensorCount = 4
	idsTensor   = tensorCount - 1
)

func (r *routedPlan) parts() [tensorCount]routedPart {
	route := r.call.Route
	layout := route.Layout(r.ranks, int64(r.rowBytes))
	return [tensorCount]routedPart{
		{from: r.call.Send, bytes: r.rowBytes, to: layout.Rows},
		{from: route.RowScales, bytes: floatBytes * int(route.Scales), to: layout.Scales},
		{from: route.Weights, bytes: floatBytes * route.TopK, to: layout.Weights},
		{from: route.IDs, bytes: idBytes * route.TopK, to: layout.IDs},
	}
}

// finish computes the result of the call from the result of the inner call.
func (r *routedPlan) finish() {
	if !r.isDispatch() {
		r.combine()
		return
	}

	route := r.call.Route
	layout := route.Layout(r.ranks, int64(r.rowBytes))
	output := bytesAt(r.call.Recv, int(layout.Bytes))
	counts := output[layout.Counts:] // int32 values: rows by rank, and then this rank's unknown ids
	partBytes := len(r.send)
	for src := range r.ranks {
		gathered := r.recv[src*partBytes : (src+1)*partBytes]
		unknownCount, rowCount := r.unpack(gathered, output, src)
		binary.LittleEndian.PutUint32(counts[4*src:], rowCount)
		if src == r.rank {
			binary.LittleEndian.PutUint32(counts[4*r.ranks:], unknownCount)
		}
	}
}

// unpack copies the tokens of rank src that have experts on this rank from src's gathered part. It
// replaces the ids of other ranks' experts by noExpert, and fills the ids of unused rows with it.
//
// It returns the number of src's ids that belong to no expert, and the number of copied rows.
func (r *routedPlan) unpack(gathered, output []byte, src int) (unknownCount, rows uint32) {
	route := r.call.Route
	// If ranks do not compare calls, src may have passed another MaxTokens.
	tokens := int(min(binary.LittleEndian.Uint64(gathered), uint64(route.MaxTokens)))
	parts := r.parts()
	var from [tensorCount][]byte // the tensors in gathered
	rest := gathered[headerBytes:]
	for i, part := range parts {
		from[i] = rest[:tokens*part.bytes]
		rest = rest[tokens*part.bytes:]
	}

	firstRow := src * int(route.MaxTokens) // of the rows for src's tokens in output
	tokenIDBytes := parts[idsTensor].bytes
	outputIDs := output[parts[idsTensor].to:]
	for token := range tokens {
		ids := from[idsTensor][token*tokenIDBytes : (token+1)*tokenIDBytes]
		ranks, unknown := r.ranksOf(ids)
		unknownCount += unknown
		if !hasRank(ranks, r.rank) {
			continue
		}

		row := firstRow + int(rows)
		for i, part := range parts {
			entry := from[i][token*part.bytes : (token+1)*part.bytes]
			copy(output[int(part.to)+row*part.bytes:], entry)
		}

		copiedIDs := outputIDs[row*tokenIDBytes : (row+1)*tokenIDBytes]
		for i := 0; i < tokenIDBytes; i += idBytes {
			if r.ownerOf(copiedIDs[i:]) != r.rank {
				binary.LittleEndian.PutUint32(copiedIDs[i:], noExpert)
			}
		}

		rows++
	}

	endRow := firstRow + int(route.MaxTokens)
	unusedIDs := outputIDs[(firstRow+int(rows))*tokenIDBytes : endRow*tokenIDBytes]
	for i := range unusedIDs {
		unusedIDs[i] = 0xff // a byte of noExpert
	}

	return unknownCount, rows
}

// noExpert is the id -1, which marks an unused place, as an unsigned number.
const noExpert = 1<<32 - 1

// ownerOf returns the rank that owns the expert with the id at the start of ids, or -1 if there is
// no such expert.
func (r *routedPlan) ownerOf(ids []byte) int {
	id := binary.LittleEndian.Uint32(ids)
	if int64(id) < int64(len(r.owners)) {
		return int(r.owners[id])
	}

	return -1
}

// ranksOf returns the ranks that own a token's experts, as a bit set. unknown is the number of ids,
// other than noExpert, that belong to no expert.
func (r *routedPlan) ranksOf(ids []byte) (ranks uint64, unknown uint32) {
	for i := 0; i < len(ids); i += idBytes {
		owner := r.ownerOf(ids[i:])
		switch {
		case owner >= 0:
			ranks |= 1 << owner
		case binary.LittleEndian.Uint32(ids[i:]) != noExpert:
			unknown++
		}
	}

	return ranks, unknown
}

// hasRank reports whether a bit set of ranks contains a rank.
func hasRank(ranks uint64, rank int) bool { return ranks>>rank&1 != 0 }

// combine adds up the rows of each token in the order of ranks. Each rank has sent its rows in the
// order of the tokens, without gaps.
func (r *routedPlan) combine() {
	route := r.call.Route
	hidden := int(route.Hidden)
	sums, row := make([]float32, hidden), make([]float32, hidden)
	nextRows := make([]int, r.ranks) // number of the next row from each rank
	tokenIDBytes := idBytes * route.TopK
	for token := range int(route.Tokens) {
		ids := bytesAt(route.IDs+uintptr(token*tokenIDBytes), tokenIDBytes)
		ranks, _ := r.ranksOf(ids)
		clear(sums)
		isFirst := true
		for src := range r.ranks {
			if !hasRank(ranks, src) {
				continue
			}

			received := src*int(route.MaxTokens) + nextRows[src]
			nextRows[src]++
			toFloat32(driver.BFloat16, row, matrixRow[uint16](addressOf(r.recv), received, hidden))
			for i, v := range row {
				if isFirst {
					sums[i] = v // unlike 0+v, this keeps the sign of -0
				} else {
					sums[i] += v
				}
			}

			isFirst = false
		}

		roundAndStore(driver.BFloat16, sums, matrixRow[uint16](r.call.Recv, token, hidden))
	}
}
