package host

import (
	"encoding/binary"
	"unsafe"

	"symmem/driver"
)

// routedPlan holds the fields of a plan for a Dispatch or a Combine. In a Dispatch, each rank
// gathers the tokens of all ranks and keeps the tokens of its experts. In a Combine, the ranks
// exchange rows, and each rank adds up the rows of its tokens.
type routedPlan struct {
	inner    plan         // the AllGather of a Dispatch or the AllToAll of a Combine
	call     *driver.Call // the Dispatch or Combine
	ranks    int
	rank     int
	rowBytes int
	owners   []int8 // group ranks by expert
	// send and recv are separate buffers for inner. send is nil in a Combine, which sends from the
	// caller's buffer.
	send, recv []byte
}

// headerBytes is the size of the number of tokens at the start of a rank's gathered part.
const headerBytes = 8

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
		part := headerBytes + int(route.MaxTokens)*r.tokenBytes()
		r.send, r.recv = make([]byte, part), make([]byte, r.ranks*part)
		inner.Operation, inner.DataType, inner.Count = driver.AllGather, driver.Uint8, int64(part)
		inner.Send = addressOf(r.send)
	} else {
		r.recv = make([]byte, r.ranks*int(route.MaxTokens)*r.rowBytes)
		inner.Operation, inner.DataType, inner.Count = driver.AllToAll, p.DataType, p.Count
		inner.Send = p.Send
	}
	inner.Recv = addressOf(r.recv)
	setSizes(&r.inner)
	return r
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

func bytesAt(address uintptr, count int) []byte {
	if count == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(pointer(address)), count)
}

// tokenBytes returns the size of a token's row, scales, weights and ids.
func (r *routedPlan) tokenBytes() int {
	return r.rowBytes + 4*int(r.call.Route.Scales) + 8*r.call.Route.TopK
}

// pack copies the number of this rank's tokens and their data to the input of the AllGather: first
// all rows, and then all scales, weights and ids. In a Combine, it does nothing.
func (r *routedPlan) pack() {
	if r.send == nil {
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

// routedPart is a tensor that Dispatch copies.
type routedPart struct {
	from  uintptr // address of this rank's tensor
	bytes int     // size per token
	to    int64   // offset in the receive buffer; see driver.RouteLayout
}

func (r *routedPlan) parts() [4]routedPart {
	route := r.call.Route
	layout := route.Layout(r.ranks, int64(r.rowBytes))
	return [4]routedPart{
		{r.call.Send, r.rowBytes, layout.Rows},
		{route.RowScales, 4 * int(route.Scales), layout.Scales},
		{route.Weights, 4 * route.TopK, layout.Weights},
		{route.IDs, 4 * route.TopK, layout.IDs},
	}
}

// finish computes the result of the call from the result of the inner call.
func (r *routedPlan) finish() {
	if r.send == nil {
		r.combine()
		return
	}
	route := r.call.Route
	layout := route.Layout(r.ranks, int64(r.rowBytes))
	output := bytesAt(r.call.Recv, int(layout.Bytes))
	counts := output[layout.Counts:]
	part := len(r.send)
	for src := range r.ranks {
		unknownCount, rowCount := r.unpack(r.recv[src*part:(src+1)*part], output, src)
		binary.LittleEndian.PutUint32(counts[4*src:], rowCount)
		if src == r.rank {
			binary.LittleEndian.PutUint32(counts[4*r.ranks:], unknownCount)
		}
	}
}

// unpack copies the tokens of rank src that have experts on this rank. It returns the number of
// src's ids that belong to no expert, and the number of copied rows.
func (r *routedPlan) unpack(gathered, output []byte, src int) (unknownCount, rows uint32) {
	route := r.call.Route
	// If ranks do not compare calls, src may have passed another MaxTokens.
	tokens := int(min(binary.LittleEndian.Uint64(gathered), uint64(route.MaxTokens)))
	parts := r.parts()
	var from [4][]byte
	rest := gathered[headerBytes:]
	for i, part := range parts {
		from[i], rest = rest[:tokens*part.bytes], rest[tokens*part.bytes:]
	}
	first := src * int(route.MaxTokens)
	idBytes := parts[3].bytes
	for token := range tokens {
		ids := from[3][token*idBytes : (token+1)*idBytes]
		ranks, unknown := r.ranksOf(ids)
		unknownCount += unknown
		if ranks>>r.rank&1 == 0 {
			continue
		}
		for i, part := range parts {
			at := int(part.to) + (first+int(rows))*part.bytes
			copy(output[at:], from[i][token*part.bytes:(token+1)*part.bytes])
		}
		own := output[int(parts[3].to)+(first+int(rows))*idBytes:][:idBytes]
		for i := 0; i < idBytes; i += 4 {
			if r.ownerOf(own[i:]) != r.rank {
				binary.LittleEndian.PutUint32(own[i:], noExpert)
			}
		}
		rows++
	}
	unused := output[int(parts[3].to):][:(first+int(route.MaxTokens))*idBytes]
	unused = unused[(first+int(rows))*idBytes:]
	for i := range unused {
		unused[i] = 0xff
	}
	return unknownCount, rows
}

const noExpert = 1<<32 - 1 // the bits of the id -1

// ownerOf returns the rank that owns the expert with the id at the start of ids, or -1.
func (r *routedPlan) ownerOf(ids []byte) int {
	if id := binary.LittleEndian.Uint32(ids); int64(id) < int64(len(r.owners)) {
		return int(r.owners[id])
	}
	return -1
}

// ranksOf returns the ranks that own a token's experts, as a bit set, and the number of ids that
// belong to no expert.
func (r *routedPlan) ranksOf(ids []byte) (ranks uint64, unknown uint32) {
	for i := 0; i < len(ids); i += 4 {
		switch owner := r.ownerOf(ids[i:]); {
		case owner >= 0:
			ranks |= 1 << owner
		case binary.LittleEndian.Uint32(ids[i:]) != noExpert:
			unknown++
		}
	}
	return ranks, unknown
}

// combine adds up the rows of each token in the order of ranks.
func (r *routedPlan) combine() {
	route := r.call.Route
	hidden := int(route.Hidden)
	sums, row := make([]float32, hidden), make([]float32, hidden)
	places := make([]int, r.ranks) // of the next row from each rank
	for token := range int(route.Tokens) {
		ids := bytesAt(route.IDs+uintptr(token*4*route.TopK), 4*route.TopK)
		ranks, _ := r.ranksOf(ids)
		clear(sums)
		isFirst := true
		for src := range r.ranks {
			if ranks>>src&1 == 0 {
				continue
			}
			at := src*int(route.MaxTokens) + places[src]
			places[src]++
			toFloat32(driver.BFloat16, row, matrixRow[uint16](addressOf(r.recv), at, hidden))
			for i, v := range row {
				if isFirst {
					sums[i] = v
				} else {
					sums[i] += v
				}
			}
			isFirst = false
		}
		roundRow(driver.BFloat16, sums, matrixRow[uint16](r.call.Recv, token, hidden))
	}
}

// setSizes prepares a plan that copies through staging buffers.
func setSizes(p *plan) {
	p.setParts()
	p.chunkLength = max(1, stageBytes/(p.partCount*p.elementSize))
	p.yieldProcessor = p.bytes > p.comm.tuning.maxPolledBytes
}
