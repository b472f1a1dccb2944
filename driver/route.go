package driver

import "fmt"

// Route holds the arguments of Dispatch and Combine in addition to those of a Call. Each token of
// a rank has a row and TopK expert ids. Each rank owns a contiguous range of experts; see
// FirstExpert. Dispatch copies the row of a token to every rank that owns one or more of its
// experts, once. These ranks then compute a new row for the token. Combine returns the new rows to
// the token's rank, and adds them up.
//
// In Dispatch, Send has Tokens rows, and Recv has the layout of RouteLayout. In Combine, Send has
// MaxTokens rows for each rank, at the places of the dispatched rows, and Recv has Tokens rows. On
// the direct path, Dispatch's Recv and Combine's Send must be in a window if MaxTokens is above 512
// or if the rows do not fit into the exchange memory. In the Call, Count is MaxTokens*Hidden. All
// fields except Tokens and the addresses are the same on all ranks.
//
// An id of -1 means no expert. Other ids that belong to no expert are ignored, but Dispatch counts
// them.
//
// If a rank's call fails on the direct path, each id in its output is valid or -1, and the rest of
// its outputs is undefined. On other paths, its outputs are unchanged.
type Route struct {
	// Tokens is the number of this rank's tokens, and MaxTokens the limit for all ranks.
	Tokens, MaxTokens int64
	// Hidden is the number of elements per row.
	Hidden int64
	// Scales is the number of float32 scales per row.
	Scales        int64
	TopK, Experts int
	// IDs points to TopK int32 values for each token, Weights to TopK float32 values, and RowScales
	// to Scales float32 values. Combine uses only IDs.
	IDs, Weights, RowScales uintptr
}

// Limits of a Route. The size of a row in bytes is a multiple of RouteAlign, as are the addresses
// of rows and Dispatch's Recv.
const (
	MaxTopK        = 16
	MaxExperts     = 512
	MaxRouteTokens = 1 << 15
	MaxRowBytes    = 1 << 20
	RouteAlign     = 16
)

// FirstExpert returns the first expert of a rank in a group of the given size. If the number of
// experts is not a multiple of the size, the first ranks own one expert more than the others.
func (r *Route) FirstExpert(ranks, rank int) int {
	return r.Experts/ranks*rank + min(rank, r.Experts%ranks)
}

// Owner returns the rank that owns an expert, or -1 if there is no such expert.
func (r *Route) Owner(ranks, expert int) int {
	if expert < 0 || expert >= r.Experts {
		return -1
	}
	for rank := ranks - 1; ; rank-- {
		if expert >= r.FirstExpert(ranks, rank) {
			return rank
		}
	}
}

// RouteLayout describes the receive buffer of a Dispatch. The fields are the offsets of its
// arrays, and its size, in bytes. Rows, Scales, Weights and IDs have MaxTokens places for each
// sending rank, in group order. The rows of a rank fill its first places, in the order of its
// tokens. Ids of the other places are -1. Counts has int32 values: the number of rows from each
// rank, and then the number of this rank's ids, other than -1, that belong to no expert.
type RouteLayout struct{ Rows, Scales, Weights, IDs, Counts, Bytes int64 }

const layoutAlign = 128 // alignment of the arrays in bytes

// Layout returns the layout for rows of the given size in bytes.
func (r *Route) Layout(ranks int, rowBytes int64) (l RouteLayout) {
	places := int64(ranks) * r.MaxTokens
	for _, part := range []struct {
		offset *int64
		bytes  int64
	}{
		{&l.Rows, places * rowBytes},
		{&l.Scales, places * 4 * r.Scales},
		{&l.Weights, places * 4 * int64(r.TopK)},
		{&l.IDs, places * 4 * int64(r.TopK)},
		{&l.Counts, 4 * int64(ranks+1)},
	} {
		*part.offset = l.Bytes
		l.Bytes += (part.bytes + layoutAlign - 1) / layoutAlign * layoutAlign
	}
	return l
}

// spans returns the sizes in bytes of a call's send and receive buffers.
func (r *Route) spans(c *Call, ranks int) (send, recv int64) {
	rowBytes := r.Hidden * int64(c.DataType.Size())
	tokenRows := r.Tokens * rowBytes
	if c.Operation == Combine {
		return int64(ranks) * r.MaxTokens * rowBytes, tokenRows
	}
	return tokenRows, r.Layout(ranks, rowBytes).Bytes
}

// Spans returns the memory of the ids, weights and scales that the operation reads. All spans are
// empty if r is nil or this rank has no tokens. The last span is always empty.
func (r *Route) Spans(o Operation) [4]Span {
	spans := [4]Span{{Name: "ids"}, {Name: "weights"}, {Name: "scales"}, {Name: "unused"}}
	if r == nil || r.Tokens == 0 {
		return spans
	}
	sizes := []int64{int64(r.TopK), int64(r.TopK), r.Scales}
	addresses := []uintptr{r.IDs, r.Weights, r.RowScales}
	if o == Combine {
		sizes = sizes[:1]
	}
	for i := range sizes {
		spans[i].Address, spans[i].Bytes, spans[i].Align = addresses[i], r.Tokens*4*sizes[i], 4
	}
	return spans
}

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
	case (c.Send|c.Recv)%RouteAlign != 0:
		return invalidError("a buffer is not aligned to %d bytes", RouteAlign)
	}
	_, recv := r.spans(c, ranks)
	for _, s := range r.Spans(c.Operation) {
		if s.Bytes > 0 && s.Address%s.Align != 0 {
			return invalidError("the %s are not aligned to %d bytes", s.Name, s.Align)
		}
		if s.Address != 0 && rangesOverlap(s.Address, s.Bytes, c.Recv, recv) {
			return invalidError("the %s overlap the output", s.Name)
		}
	}
	return nil
}

func (r *Route) validateShape(t DataType) error {
	rowBytes := r.Hidden * int64(t.Size())
	switch {
	case r.TopK < 1 || r.TopK > MaxTopK:
		return invalidError("%d experts per token; want 1 to %d", r.TopK, MaxTopK)
	case r.Experts < 1 || r.Experts > MaxExperts:
		return invalidError("%d experts; want 1 to %d", r.Experts, MaxExperts)
	case r.MaxTokens < 1 || r.MaxTokens > MaxRouteTokens:
		return invalidError("at most %d tokens per rank; want 1 to %d", r.MaxTokens, MaxRouteTokens)
	case r.Hidden < 1 || r.Hidden > MaxRowBytes || rowBytes > MaxRowBytes || rowBytes%RouteAlign != 0:
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
