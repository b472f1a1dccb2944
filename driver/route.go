package driver

import "fmt"

// Route holds the arguments of Dispatch and Combine in addition to those of a Call. Dispatch and
// Combine are the operations of a mixture of experts. Each token of a rank has a row and the ids of
// TopK experts. Each rank owns a contiguous range of experts; see FirstExpert. Dispatch copies the
// row of a token once to each rank that owns at least one of its experts. These ranks then compute
// a new row for the token. Combine returns the new rows to the token's rank, and adds them up.
//
// In Dispatch, Send has Tokens rows, and Recv has the layout of RouteLayout. In Combine, Send has
// MaxTokens rows for each rank, at the places of the dispatched rows, and Recv has Tokens rows. In
// the Call, Count is MaxTokens*Hidden. All fields except Tokens and the addresses are the same on
// all ranks.
//
// The direct path can copy rows through a fixed exchange memory. If MaxTokens is above 512 or the
// rows do not fit into it, Dispatch's Recv and Combine's Send must be in a window: memory that all
// ranks have registered.
//
// An id of -1 means no expert. Both operations ignore all ids that belong to no expert. Dispatch
// counts those that are not -1.
//
// If a rank's call fails on the direct path, each id in its output is valid or -1, and the rest of
// its outputs is undefined. On other paths, its outputs are unchanged.
type Route struct {
	Tokens    int64 // number of this rank's tokens
	MaxTokens int64 // limit of Tokens on all ranks
	Hidden    int64 // number of elements per row
	Scales    int64 // number of float32 scales per row, which are copied with the row
	TopK      int   // number of experts of a token
	Experts   int   // number of experts of all ranks
	// IDs and Weights are addresses of TopK values for each token: of type int32 and float32.
	// RowScales is the address of Scales float32 values for each token. Combine uses only IDs.
	IDs, Weights, RowScales uintptr
}

// Limits of a Route.
const (
	MaxTopK        = 16
	MaxExperts     = 512
	MaxRouteTokens = 1 << 15
	MaxRowBytes    = 1 << 20
	RouteAlign     = 16 // in bytes, of the size of a row, of Send and of Recv
)

// wordBytes is the size in bytes of an id, a weight, a scale and a count.
const wordBytes = 4

// FirstExpert returns the first expert of a rank in a group of the given size. If the number of
// experts is not a multiple of the size, the first ranks own one expert more than the others.
func (r *Route) FirstExpert(ranks, rank int) int {
	perRank := r.Experts / ranks
	remainder := r.Experts % ranks // number of ranks that own one more
	return rank*perRank + min(rank, remainder)
}

// Owner returns the rank that owns an expert, or -1 if there is no such expert.
func (r *Route) Owner(ranks, expert int) int {
	if expert < 0 || expert >= r.Experts {
		return -1
	}

	rank := ranks - 1
	for expert < r.FirstExpert(ranks, rank) {
		rank-- // at most to 0, whose first expert is 0
	}

	return rank
}

// RouteLayout describes the receive buffer of a Dispatch. Bytes is its size. The other fields are
// the offsets of its arrays, in bytes.
//
// Rows, Scales, Weights and IDs have MaxTokens places for each sending rank, in group order. The
// rows of a rank fill its first places, in the order of its tokens. Ids of the other places are -1.
// Counts has int32 values: the number of rows from each rank, and then the number of this rank's
// ids, other than -1, that belong to no expert.
type RouteLayout struct{ Rows, Scales, Weights, IDs, Counts, Bytes int64 }

const layoutAlign = 128 // alignment of the arrays in bytes

// appendArray adds an array at the end of a layout, and returns its offset. It increases
// layoutBytes, the size of the layout, by the size of the array and of the gap after it.
func appendArray(layoutBytes *int64, arrayBytes int64) (offset int64) {
	offset = *layoutBytes
	*layoutBytes += (arrayBytes + layoutAlign - 1) / layoutAlign * layoutAlign
	return offset
}

// Layout returns the layout for rows of the given size in bytes.
func (r *Route) Layout(ranks int, rowBytes int64) RouteLayout {
	places := int64(ranks) * r.MaxTokens
	ids := places * int64(r.TopK) // also the number of weights
	counts := int64(ranks + 1)
	var l RouteLayout
	l.Rows = appendArray(&l.Bytes, places*rowBytes)
	l.Scales = appendArray(&l.Bytes, places*r.Scales*wordBytes)
	l.Weights = appendArray(&l.Bytes, ids*wordBytes)
	l.IDs = appendArray(&l.Bytes, ids*wordBytes)
	l.Counts = appendArray(&l.Bytes, counts*wordBytes)
	return l
}

// spans returns the sizes in bytes of a call's send and receive buffers.
func (r *Route) spans(c *Call, ranks int) (send, recv int64) {
	rowBytes := r.Hidden * int64(c.DataType.Size())
	tokenBytes := r.Tokens * rowBytes
	if c.Operation == Combine {
		placeBytes := int64(ranks) * r.MaxTokens * rowBytes
		return placeBytes, tokenBytes
	}

	return tokenBytes, r.Layout(ranks, rowBytes).Bytes
}

// Spans returns the memory of the ids, weights and scales that the operation reads. All spans are
// empty if r is nil or this rank has no tokens. The last span is always empty: the result has the
// length that all operations have in common.
func (r *Route) Spans(o Operation) [4]Span {
	const ids, weights, scales = 0, 1, 2 // indexes of the spans
	spans := [4]Span{
		ids: {Name: "ids"}, weights: {Name: "weights"}, scales: {Name: "scales"}, {Name: "unused"},
	}
	if r == nil || r.Tokens == 0 {
		return spans
	}

	idBytes := r.Tokens * int64(r.TopK) * wordBytes
	spans[ids].set(r.IDs, idBytes)
	if o == Combine {
		return spans
	}

	spans[weights].set(r.Weights, idBytes)
	spans[scales].set(r.RowScales, r.Tokens*r.Scales*wordBytes)
	return spans
}

// set sets all fields but the name, for an array of words.
func (s *Span) set(address uintptr, bytes int64) {
	s.Address = address
	s.Bytes = bytes
	s.Align = wordBytes
}

// validate returns an error if no backend can run call c with the arguments in r.
func (r *Route) validate(c *Call, ranks int) error {
	if c.Operation == Combine && c.DataType != BFloat16 {
		return invalidError("%v does not support %v", c.Operation, c.DataType)
	}

	if err := r.validateShape(c.DataType); err != nil {
		return err
	}

	switch {
	case r.Tokens < 0 || r.Tokens > r.MaxTokens:
		return invalidError("%d tokens; want 0 to %d", r.Tokens, r.MaxTokens)
	case c.Count != r.MaxTokens*r.Hidden:
		return invalidError("count %d does not equal %d rows of %d elements", c.Count, r.MaxTokens,
			r.Hidden)
	case (c.Send|c.Recv)%RouteAlign != 0: // one of them is not aligned
		return invalidError("a buffer is not aligned to %d bytes", RouteAlign)
	}

	_, recvBytes := r.spans(c, ranks)
	for _, s := range r.Spans(c.Operation) {
		if s.Bytes > 0 && s.Address%s.Align != 0 {
			return invalidError("the %s are not aligned to %d bytes", s.Name, s.Align)
		}

		if s.Address != 0 && rangesOverlap(s.Address, s.Bytes, c.Recv, recvBytes) {
			return invalidError("the %s overlap the output", s.Name)
		}
	}

	return nil
}

// validateShape checks the sizes, for rows of type t.
func (r *Route) validateShape(t DataType) error {
	// If this product overflows, Hidden is refused because it is above MaxRowBytes.
	rowBytes := r.Hidden * int64(t.Size())
	switch {
	case r.TopK < 1 || r.TopK > MaxTopK:
		return invalidError("%d experts per token; want 1 to %d", r.TopK, MaxTopK)
	case r.Experts < 1 || r.Experts > MaxExperts:
		return invalidError("%d experts; want 1 to %d", r.Experts, MaxExperts)
	case r.MaxTokens < 1 || r.MaxTokens > MaxRouteTokens:
		return invalidError("at most %d tokens per rank; want 1 to %d", r.MaxTokens, MaxRouteTokens)
	case r.Hidden < 1 || r.Hidden > MaxRowBytes,
		rowBytes > MaxRowBytes || rowBytes%RouteAlign != 0:
		return invalidError("rows have %d bytes; want a multiple of %d up to %d", rowBytes, RouteAlign,
			MaxRowBytes)
	case r.Scales < 0 || r.Scales > r.Hidden:
		return invalidError("%d scales per row of %d elements", r.Scales, r.Hidden)
	}

	return nil
}

// Describe returns a description of the arguments that must be the same on all ranks.
func (r *Route) Describe() string {
	text := fmt.Sprintf("%d of %d experts, at most %d tokens", r.TopK, r.Experts, r.MaxTokens)
	if r.Scales > 0 {
		text += fmt.Sprintf(", %d scales", r.Scales)
	}

	return text
}
