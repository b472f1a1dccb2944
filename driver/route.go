package driver

import "fmt"

// Dispatch and Combine exchange rows in a mixture of experts: a model in which a few of many
// experts process each token. For example, rank 0 owns the experts 0 and 1, and rank 1 owns the
// experts 2 and 3. A token of rank 0 has a row of numbers, and the ids 1, 2 and 3 of its experts.
//
// Dispatch copies the row once to each rank that owns an expert of the token: to rank 0 itself, and
// to rank 1. From its copy, each of the two ranks computes a new row. Combine sends both new rows
// to rank 0, and adds them up there.
//
// A rank stores copies in places: MaxTokens places for each sending rank. If MaxTokens is 8, copies
// from rank 0 fill the places 0, 1, 2 and so on, in the order of the tokens. Copies from rank 1
// fill the places 8, 9, 10 and so on. The other places are empty. A new row has the place of the
// copy from which it was computed.

// Route holds the arguments of a Dispatch or Combine that have no field in Call.
//
// In the Call, Count is MaxTokens*Hidden. Send and Recv are the addresses of these buffers:
//
//	            Send                         Recv
//	Dispatch    the row of each token        five arrays; see RouteLayout
//	Combine     the new row of each place    the sum of the new rows of each token
//
// Combine ignores the rows at empty places. Tokens and the addresses can differ between ranks, but
// the other fields must be the same.
//
// PathDirect, the path that runs GPU kernels, can exchange the rows of a small call through memory
// of the backend. A call is small if MaxTokens is at most 512 and the rows fit into this memory. In
// other calls, Dispatch's Recv and Combine's Send must be in a window: memory that all ranks have
// registered.
//
// If a call fails on PathDirect, Recv is undefined. But the ids in a Dispatch's Recv are still -1
// or ids of experts. If a call fails on another path, Recv is unchanged.
type Route struct {
	Tokens    int64 // number of this rank's tokens
	MaxTokens int64 // largest number of tokens that a rank may have
	Hidden    int64 // number of elements of a row
	Scales    int64 // number of scales of a row; may be 0
	TopK      int   // number of ids of a token
	Experts   int   // number of experts on all ranks together

	// IDs is the address of TopK int32 values for each of this rank's tokens. Experts have the ids 0
	// to Experts-1. The id -1 fills up the ids of a token that has fewer than TopK experts. All other
	// ids are unknown. Both operations ignore -1 and unknown ids. Dispatch counts the unknown ones.
	IDs uintptr
	// Weights is the address of TopK float32 values for each token: a weight for each id. Dispatch
	// copies them with the row. Combine does not use them.
	Weights uintptr
	// RowScales is the address of Scales float32 values for each token. Dispatch copies them with the
	// row. Combine does not use them.
	RowScales uintptr
}

// The largest values that a Route may have. The GPU kernels rely on them.
const (
	MaxTopK        = 16
	MaxExperts     = 512
	MaxRouteTokens = 1 << 15 // for Route.MaxTokens
	MaxRowBytes    = 1 << 20 // for the size of a row
)

// RouteAlign is the alignment of Send and Recv in bytes. The size of a row is a multiple of it, so
// that each row is aligned. The GPU kernels copy 16 bytes at a time.
const RouteAlign = 16

// FirstExpert returns the id of the first expert that a rank owns. ranks is the size of the group.
//
// If the experts cannot be divided equally, the first ranks own one more: of 5 experts on 2 ranks,
// rank 0 owns 0 to 2, and rank 1 owns 3 and 4. On every rank, the experts end before
// FirstExpert(ranks, rank+1).
func (r *Route) FirstExpert(ranks, rank int) int {
	perRank := r.Experts / ranks
	largerRanks := r.Experts % ranks       // number of ranks that own one more
	extraExperts := min(rank, largerRanks) // one for each larger rank before this rank
	return rank*perRank + extraExperts
}

// Owner returns the rank that owns an expert, or -1 if no expert has the id.
func (r *Route) Owner(ranks, id int) int {
	isExpert := id >= 0 && id < r.Experts
	if !isExpert {
		return -1
	}

	rank := ranks - 1
	for r.FirstExpert(ranks, rank) > id {
		rank-- // rank 0 ends the loop, because its first expert is 0
	}

	return rank
}

// RouteLayout describes the Recv of a Dispatch, which consists of five arrays.
//
// The first four have an entry for each place, in the order of places. IDs keeps only the ids of
// this rank's experts. All others are replaced by -1, and the ids of an empty place are all -1.
type RouteLayout struct {
	// These are the offsets of the arrays in Recv, in bytes.
	Rows    int64 // an entry has one row
	Scales  int64 // an entry has Route.Scales float32 values
	Weights int64 // an entry has TopK float32 values
	IDs     int64 // an entry has TopK int32 values
	// Counts has an int32 for each sending rank: the number of its copies. One more int32 at the end
	// is the number of unknown ids that this rank itself passed in Route.IDs.
	Counts int64

	Bytes int64 // size of Recv
}

// layoutBuilder computes the offsets of arrays that follow one another in a buffer.
type layoutBuilder struct {
	bytes int64 // size of the buffer up to now
}

// arrayAlign is the alignment of each array in bytes. It is the size of a cache line on GPUs, and a
// multiple of RouteAlign.
const arrayAlign = 128

// add appends an array to the buffer, and returns the array's offset.
func (b *layoutBuilder) add(arrayBytes int64) (offset int64) {
	offset = b.bytes
	units := (arrayBytes + arrayAlign - 1) / arrayAlign // rounded up
	b.bytes += units * arrayAlign                       // where the next array begins
	return offset
}

// wordBytes is the size of a word: an id, a weight, a scale or a count.
const wordBytes = 4 // of int32 and float32

// Layout returns the layout of a Dispatch's Recv. rowBytes is the size of a row.
func (r *Route) Layout(ranks int, rowBytes int64) RouteLayout {
	places := r.places(ranks)
	ids := places * int64(r.TopK)
	weights := ids // one for each id
	counts := int64(ranks) + 1
	var b layoutBuilder
	var l RouteLayout
	l.Rows = b.add(places * rowBytes)
	l.Scales = b.add(places * r.Scales * wordBytes)
	l.Weights = b.add(weights * wordBytes)
	l.IDs = b.add(ids * wordBytes)
	l.Counts = b.add(counts * wordBytes)
	l.Bytes = b.bytes
	return l
}

// places returns the number of places that a rank has.
func (r *Route) places(ranks int) int64 { return int64(ranks) * r.MaxTokens }

// rowBytes returns the size of a row with elements of type t.
func (r *Route) rowBytes(t DataType) int64 { return r.Hidden * int64(t.Size()) }

// sendAndRecvBytes returns the sizes in bytes of a call's Send and Recv.
func (r *Route) sendAndRecvBytes(c *Call, ranks int) (send, recv int64) {
	rowBytes := r.rowBytes(c.DataType)
	bytesOfTokens := r.Tokens * rowBytes
	if c.Operation == Combine {
		bytesOfPlaces := r.places(ranks) * rowBytes
		return bytesOfPlaces, bytesOfTokens
	}

	return bytesOfTokens, r.Layout(ranks, rowBytes).Bytes
}

// Spans returns the ids, the weights and the scales that the operation reads, in this order.
//
// Combine reads only the ids, so that the other spans are empty. If r is nil or this rank has no
// tokens, all spans are empty. The fourth span is always empty. It exists because Call.OtherSpans
// returns the spans of a Route or of a Norm, and a Norm has four.
func (r *Route) Spans(o Operation) [4]Span {
	ids := Span{Name: "ids"}
	weights := Span{Name: "weights"}
	scales := Span{Name: "scales"}
	unused := Span{Name: "unused"}
	hasTokens := r != nil && r.Tokens != 0
	if hasTokens {
		ids = r.tokenSpan(ids.Name, r.IDs, int64(r.TopK))
	}

	if hasTokens && o != Combine {
		weights = r.tokenSpan(weights.Name, r.Weights, int64(r.TopK))
		scales = r.tokenSpan(scales.Name, r.RowScales, r.Scales)
	}

	return [4]Span{ids, weights, scales, unused}
}

// tokenSpan returns the span of an array with wordsPerToken words for each token.
func (r *Route) tokenSpan(name string, address uintptr, wordsPerToken int64) Span {
	bytes := r.Tokens * wordsPerToken * wordBytes
	return Span{Name: name, Address: address, Bytes: bytes, Align: wordBytes}
}

// validate returns an error if no backend can run call c.
func (r *Route) validate(c *Call, ranks int) error {
	if c.Operation == Combine && c.DataType != BFloat16 {
		return invalidError("%v does not support %v", c.Operation, c.DataType)
	}

	if err := r.validateLimits(c.DataType); err != nil {
		return err
	}

	areBuffersAligned := c.Send%RouteAlign == 0 && c.Recv%RouteAlign == 0
	switch {
	case r.Tokens < 0 || r.Tokens > r.MaxTokens:
		return invalidError("%d tokens; want 0 to %d", r.Tokens, r.MaxTokens)
	case c.Count != r.MaxTokens*r.Hidden:
		return invalidError("count %d does not equal %d rows of %d elements", c.Count, r.MaxTokens,
			r.Hidden)
	case !areBuffersAligned:
		return invalidError("a buffer is not aligned to %d bytes", RouteAlign)
	}

	return r.validateSpans(c, ranks)
}

// validateLimits checks the arguments that are the same on all ranks. Rows have type t.
func (r *Route) validateLimits(t DataType) error {
	switch {
	case r.TopK < 1 || r.TopK > MaxTopK:
		return invalidError("%d experts per token; want 1 to %d", r.TopK, MaxTopK)
	case r.Experts < 1 || r.Experts > MaxExperts:
		return invalidError("%d experts; want 1 to %d", r.Experts, MaxExperts)
	case r.MaxTokens < 1 || r.MaxTokens > MaxRouteTokens:
		return invalidError("at most %d tokens per rank; want 1 to %d", r.MaxTokens, MaxRouteTokens)
	case !r.isRowValid(t):
		return invalidError("rows have %d bytes; want a multiple of %d up to %d", r.rowBytes(t),
			RouteAlign, MaxRowBytes)
	case r.Scales < 0 || r.Scales > r.Hidden:
		return invalidError("%d scales per row of %d elements", r.Scales, r.Hidden)
	}

	return nil
}

// isRowValid reports whether rows of type t have a valid size.
func (r *Route) isRowValid(t DataType) bool {
	// An element has at least one byte, so a row has at most MaxRowBytes elements. Without this check,
	// rowBytes could overflow below.
	if r.Hidden < 1 || r.Hidden > MaxRowBytes {
		return false
	}

	rowBytes := r.rowBytes(t)
	return rowBytes <= MaxRowBytes && rowBytes%RouteAlign == 0
}

// validateSpans checks the memory of the ids, weights and scales. It must be aligned, and must not
// overlap Recv.
func (r *Route) validateSpans(c *Call, ranks int) error {
	_, recvBytes := r.sendAndRecvBytes(c, ranks)
	for _, s := range r.Spans(c.Operation) {
		if s.Bytes == 0 {
			continue
		}

		if s.Address%s.Align != 0 {
			return invalidError("the %s are not aligned to %d bytes", s.Name, s.Align)
		}

		isMissing := s.Address == 0 // the caller of Call.Validate reports this
		if !isMissing && rangesOverlap(s.Address, s.Bytes, c.Recv, recvBytes) {
			return invalidError("the %s overlap the output", s.Name)
		}
	}

	return nil
}

// Describe describes the arguments that must be the same on all ranks. Hidden is left out, because
// it follows from Call.Count and MaxTokens.
func (r *Route) Describe() string {
	text := fmt.Sprintf("%d of %d experts, at most %d tokens", r.TopK, r.Experts, r.MaxTokens)
	if r.Scales > 0 {
		text += fmt.Sprintf(", %d scales", r.Scales)
	}

	return text
}
