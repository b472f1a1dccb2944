package driver

import "math"

// Permutation holds the arguments of the methods of Permuter, Permute and Unpermute. A pair is a
// row that Dispatch has received and one of its ids that is an expert of this rank.
//
// Permute copies each row once for each of its pairs. The rows of an expert are adjacent, in the
// order of the ids in memory: by rank, place and index. An expert then computes a row for each
// pair. Unpermute multiplies the computed rows by the weights of their pairs. At the place of each
// dispatched row, it stores the sum over the row's pairs, in the order of the ids. Products and
// sums are float32, and the result is rounded once. Places without a row are not written.
type Permutation struct {
	// Route holds the arguments of the Dispatch. Tokens and the addresses are not used.
	Route Route
	// DataType is the type of the dispatched rows. Rows of Unpermute are BFloat16.
	DataType    DataType
	Rank, Ranks int
	// Align is the alignment, in rows, of the first row of each expert.
	Align int64
	// Dispatched has the layout of RouteLayout, and Permuted the layout of PermutedLayout. Computed
	// has the rows that experts computed, in the order of the permuted rows, and Returned has the
	// shape of Combine's Send. Permute uses the first two, and Unpermute the last three.
	Dispatched, Permuted, Computed, Returned uintptr
}

// MaxPermuteAlign is the largest Permutation.Align.
const MaxPermuteAlign = 1 << 12

// PermutedLayout describes the output of Permute. Capacity is the number of rows, which suffices
// for all pairs. Bytes is the size of the output. The other fields are offsets of arrays, in
// bytes.
//
// Rows, Scales, Weights and Experts have an entry for each row. Experts has the number of the
// row's expert among the experts of this rank. For a row without a pair, it has -1, and the other
// entries are not written. Firsts has the first row of each expert, and then the end of the last
// expert's rows. Counts has the number of pairs of each expert. Firsts and Counts are sized for
// the rank with the most experts; experts that this rank lacks have no rows. Places has the row of
// each id of Dispatch's output, or -1. Received has the number of dispatched rows from each rank.
// All numbers are int32, and Weights are float32.
type PermutedLayout struct {
	Rows, Scales, Weights, Experts, Places, Firsts, Counts, Received, Bytes int64
	Capacity                                                                int64
}

// MostExperts returns the largest number of experts of a rank.
func (r *Route) MostExperts(ranks int) int { return (r.Experts + ranks - 1) / ranks }

// PermutedLayout returns the layout for rows of the given size in bytes.
func (r *Route) PermutedLayout(ranks int, rowBytes, align int64) (l PermutedLayout) {
	ids, experts := int64(ranks)*r.MaxTokens*int64(r.TopK), int64(r.MostExperts(ranks))
	l.Capacity = (ids + min(experts, ids)*(align-1)) / align * align
	for _, part := range []struct {
		offset *int64
		bytes  int64
	}{
		{&l.Rows, l.Capacity * rowBytes},
		{&l.Scales, l.Capacity * 4 * r.Scales},
		{&l.Weights, l.Capacity * 4},
		{&l.Experts, l.Capacity * 4},
		{&l.Places, ids * 4},
		{&l.Firsts, (experts + 1) * 4},
		{&l.Counts, experts * 4},
		{&l.Received, int64(ranks) * 4},
	} {
		*part.offset = l.Bytes
		l.Bytes += (part.bytes + layoutAlign - 1) / layoutAlign * layoutAlign
	}
	return l
}

// RowBytes returns the sizes in bytes of a dispatched and of a computed row.
func (p *Permutation) RowBytes() (dispatched, computed int64) {
	return p.Route.Hidden * int64(p.DataType.Size()), p.Route.Hidden * int64(BFloat16.Size())
}

// Layout returns the layout of Permuted.
func (p *Permutation) Layout() PermutedLayout {
	dispatched, _ := p.RowBytes()
	return p.Route.PermutedLayout(p.Ranks, dispatched, p.Align)
}

// Spans returns the memory that Permute or, if returns is set, Unpermute uses. The last span is
// the output.
func (p *Permutation) Spans(returns bool) []Span {
	dispatched, computed := p.RowBytes()
	permuted := p.Layout()
	if returns {
		return []Span{
			{"permuted", p.Permuted, permuted.Bytes, RouteAlign},
			{"computed", p.Computed, permuted.Capacity * computed, RouteAlign},
			{"returned", p.Returned, int64(p.Ranks) * p.Route.MaxTokens * computed, RouteAlign},
		}
	}
	return []Span{
		{"dispatched", p.Dispatched, p.Route.Layout(p.Ranks, dispatched).Bytes, RouteAlign},
		{"permuted", p.Permuted, permuted.Bytes, RouteAlign},
	}
}

// Validate returns an error that matches ErrInvalid unless every backend that implements Permuter
// can run Permute or, if returns is set, Unpermute.
func (p *Permutation) Validate(returns bool) error {
	switch {
	case !p.DataType.Valid():
		return invalidError("unknown type %d", p.DataType)
	case p.Align < 1 || p.Align > MaxPermuteAlign:
		return invalidError("experts are aligned to %d rows; want 1 to %d", p.Align, MaxPermuteAlign)
	}
	if err := p.Route.validateShape(p.DataType); err != nil {
		return err
	}
	if err := p.Route.validateShape(BFloat16); returns && err != nil {
		return err
	}
	if rows := p.Layout().Capacity; rows > math.MaxInt32 {
		return invalidError("%d permuted rows; want at most %d", rows, math.MaxInt32)
	}
	spans := p.Spans(returns)
	output := spans[len(spans)-1]
	for i, s := range spans {
		if s.Address%s.Align != 0 {
			return invalidError("the %s rows are not aligned to %d bytes", s.Name, s.Align)
		}
		if i+1 < len(spans) && s.Address != 0 &&
			rangesOverlap(s.Address, s.Bytes, output.Address, output.Bytes) {
			return invalidError("the %s rows overlap the %s rows", s.Name, output.Name)
		}
	}
	return nil
}
