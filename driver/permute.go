package driver

import "math"

// Permutation holds the arguments of Permute and Unpermute, the methods of Permuter. They sort the
// rows that a Dispatch has received by expert, and sort the results back. A rank receives a row
// only once, even if several ids of the row are experts of this rank. Each of these ids forms a
// pair with the row.
//
// Permute copies each row once for each of its pairs. The rows of an expert are adjacent. They are
// in the order of the ids in memory: by sending rank, by place, and by index among the row's ids.
// An expert then computes a row for each pair.
//
// Unpermute multiplies the computed rows by the weights of their pairs. At the place of each
// dispatched row, it stores the sum over the row's pairs, in the order of the ids. Products and
// sums are float32, and the result is rounded once. Places without a row are not written.
type Permutation struct {
	// Route holds the arguments of the Dispatch. Tokens and the addresses are not used.
	Route Route
	// DataType is the type of the dispatched rows. Rows of Unpermute are BFloat16.
	DataType    DataType
	Rank, Ranks int // number of this rank in the group, and size of the group
	// Align is the alignment, in rows, of the first row of each expert.
	Align int64
	// These are the addresses of buffers. Dispatched has the layout of RouteLayout, and Permuted has
	// the layout of PermutedLayout. Computed has the rows that experts computed, in the order of the
	// permuted rows. Returned has the shape of Combine's Send. Permute reads Dispatched and writes
	// Permuted. Unpermute reads Permuted and Computed, and writes Returned.
	Dispatched, Permuted, Computed, Returned uintptr
}

// MaxPermuteAlign is the largest Permutation.Align.
const MaxPermuteAlign = 1 << 12

// PermutedLayout describes the output of Permute. All numbers in the arrays are int32, except for
// Weights and Scales, which are float32.
type PermutedLayout struct {
	// Offsets of arrays, in bytes, in the order of the arrays.
	//
	// Rows, Scales, Weights and Experts have an entry for each permuted row. Experts has the number of
	// the row's expert among the experts of this rank. Some rows have no pair, because of Align or
	// because there are fewer pairs than rows. Experts has -1 for them, and their other entries are
	// not written.
	Rows, Scales, Weights, Experts int64
	Places                         int64 // the permuted row of each id of Dispatch's output, or -1
	// Firsts has the first row of each expert, and then the end of the last expert's rows. Counts has
	// the number of pairs of each expert. Both have entries for MostExperts experts. Experts that
	// this rank lacks have no rows.
	Firsts, Counts int64
	Received       int64 // the number of dispatched rows from each rank

	Bytes    int64 // size of the output
	Capacity int64 // number of permuted rows, which suffices for all pairs
}

// MostExperts returns the largest number of experts of a rank.
func (r *Route) MostExperts(ranks int) int { return (r.Experts + ranks - 1) / ranks }

// PermutedLayout returns the layout for rows of the given size in bytes. align is
// Permutation.Align.
func (r *Route) PermutedLayout(ranks int, rowBytes, align int64) PermutedLayout {
	ids := int64(ranks) * r.MaxTokens * int64(r.TopK)
	experts := int64(r.MostExperts(ranks))
	// Each id can form a pair. Each expert that has pairs needs up to align-1 more rows.
	maxRows := ids + min(experts, ids)*(align-1)
	capacity := maxRows / align * align
	var b layoutBuilder
	l := PermutedLayout{Capacity: capacity}
	l.Rows = b.add(capacity * rowBytes)
	l.Scales = b.add(capacity * r.Scales * wordBytes)
	l.Weights = b.add(capacity * wordBytes)
	l.Experts = b.add(capacity * wordBytes)
	l.Places = b.add(ids * wordBytes)
	l.Firsts = b.add((experts + 1) * wordBytes)
	l.Counts = b.add(experts * wordBytes)
	l.Received = b.add(int64(ranks) * wordBytes)
	l.Bytes = b.bytes
	return l
}

// RowBytes returns the sizes in bytes of a dispatched and of a computed row.
func (p *Permutation) RowBytes() (dispatched, computed int64) {
	dispatched = p.Route.Hidden * int64(p.DataType.Size())
	computed = p.Route.Hidden * int64(BFloat16.Size())
	return dispatched, computed
}

// Layout returns the layout of Permuted.
func (p *Permutation) Layout() PermutedLayout {
	dispatched, _ := p.RowBytes()
	return p.Route.PermutedLayout(p.Ranks, dispatched, p.Align)
}

// Spans returns the memory that Unpermute uses if returns is set, and otherwise the memory that
// Permute uses. The last span is the output.
func (p *Permutation) Spans(returns bool) []Span {
	dispatchedRow, computedRow := p.RowBytes()
	layout := p.Layout()
	permuted := Span{
		Name: "permuted", Address: p.Permuted, Bytes: layout.Bytes, Align: RouteAlign,
	}
	if !returns {
		dispatched := Span{
			Name: "dispatched", Address: p.Dispatched, Align: RouteAlign,
			Bytes: p.Route.Layout(p.Ranks, dispatchedRow).Bytes,
		}
		return []Span{dispatched, permuted}
	}

	computed := Span{
		Name: "computed", Address: p.Computed, Align: RouteAlign,
		Bytes: layout.Capacity * computedRow,
	}
	returned := Span{
		Name: "returned", Address: p.Returned, Align: RouteAlign,
		Bytes: int64(p.Ranks) * p.Route.MaxTokens * computedRow,
	}
	return []Span{permuted, computed, returned}
}

// Validate returns an error if a backend that implements Permuter could not run Unpermute or, if
// returns is false, Permute. The error matches ErrInvalid.
func (p *Permutation) Validate(returns bool) error {
	switch {
	case !p.DataType.Valid():
		return invalidError("unknown type %d", p.DataType)
	case p.Align < 1 || p.Align > MaxPermuteAlign:
		return invalidError("experts are aligned to %d rows; want 1 to %d", p.Align, MaxPermuteAlign)
	}

	if err := p.Route.validateLimits(p.DataType); err != nil {
		return err
	}

	if returns { // the computed rows may be longer than the dispatched ones
		if err := p.Route.validateLimits(BFloat16); err != nil {
			return err
		}
	}

	if rows := p.Layout().Capacity; rows > math.MaxInt32 {
		return invalidError("%d permuted rows; want at most %d", rows, math.MaxInt32)
	}

	spans := p.Spans(returns)
	for _, s := range spans {
		if s.Address%s.Align != 0 {
			return invalidError("the %s rows are not aligned to %d bytes", s.Name, s.Align)
		}
	}

	inputs, output := spans[:len(spans)-1], spans[len(spans)-1]
	for _, s := range inputs {
		if s.Address != 0 && rangesOverlap(s.Address, s.Bytes, output.Address, output.Bytes) {
			return invalidError("the %s rows overlap the %s rows", s.Name, output.Name)
		}
	}

	return nil
}
