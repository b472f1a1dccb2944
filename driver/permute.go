package driver

import "math"

// Permutation holds the arguments of Permute and Unpermute, the methods of Permuter. A mixture of
// experts calls these methods between a Dispatch and a Combine.
//
// Suppose that this rank owns the experts 0 and 1, and that a Dispatch has stored three rows in its
// output, at the indexes 0, 1 and 2, called places. Each row has ids of experts: row a has 0 and 1,
// row b has 1, and row c has 0. Each expert needs its rows next to each other. So Permute copies a
// row once for each of its ids that is an expert of this rank, and sorts the copies by expert. If
// Align is 4, the result is as follows, with unused rows ".":
//
//	a c . . a b . .
//
// Each expert then computes a row from each of its copies. For row a, Unpermute multiplies the two
// computed rows by the weights of the ids, and adds them up. It stores the sum in another buffer,
// which can be the input of a Combine. There, the sum has the index 0, the place of row a. Rows b
// and c have one computed row each. Unpermute does not write to places without a row.
//
// The copies of an expert are in the order of their places. If a row repeats an id, its copies are
// in the order of its ids. Unpermute adds in this order, too. It computes products and sums in
// float32, and rounds the result to BFloat16.
type Permutation struct {
	// Route holds the arguments of the Dispatch. Its Tokens and its addresses are not used.
	Route Route
	// DataType is the type of the dispatched rows. Computed and returned rows are BFloat16.
	DataType    DataType
	Rank, Ranks int // number of this rank in the group, and size of the group
	// Align is the alignment, in rows, of the first copy of each expert.
	Align int64
	// Dispatched is the address of the Dispatch's output, with a RouteLayout. Permute reads it.
	Dispatched uintptr
	// Permuted is the address of the copies, with a PermutedLayout. Permute writes it, and Unpermute
	// reads it.
	Permuted uintptr
	// Computed is the address of the computed rows. Each has the index of its copy among the Rows of
	// Permuted. Unpermute reads them.
	Computed uintptr
	// Returned is the address of the sums. Each has its place as index. Unpermute writes them.
	Returned uintptr
}

// MaxPermuteAlign is the largest Permutation.Align.
const MaxPermuteAlign = 1 << 12

// PermutedLayout describes the output of Permute, which consists of arrays. Weights and Scales are
// arrays of float32. Experts, Places, Firsts, Counts and Received are arrays of int32.
type PermutedLayout struct {
	// These are the offsets of the arrays in bytes.
	//
	// Rows, Scales, Weights and Experts have an entry for each copy and each unused row. Experts has
	// the index of the copy's expert among the experts of this rank. For an unused row, it has -1,
	// and the other entries are not written.
	Rows, Scales, Weights, Experts int64
	// Places has the index of the copy for each id of the Dispatch's output, or -1.
	Places int64
	// Firsts has the index at which the copies of each expert begin, and then the end of the last
	// expert's rows. Counts has the number of copies of each expert. Both have entries for
	// MostExperts experts. Experts that this rank lacks have no copies.
	Firsts, Counts int64
	Received       int64 // the number of dispatched rows from each rank

	Bytes    int64 // size of the output
	Capacity int64 // largest number of copies and unused rows; the length of Rows
}

// MostExperts returns the largest number of experts of a rank.
func (r *Route) MostExperts(ranks int) int { return (r.Experts + ranks - 1) / ranks }

// PermutedLayout returns the layout for rows of the given size in bytes. align is
// Permutation.Align.
func (r *Route) PermutedLayout(ranks int, rowBytes, align int64) PermutedLayout {
	ids := int64(ranks) * r.MaxTokens * int64(r.TopK)
	experts := int64(r.MostExperts(ranks))
	capacity := permutedCapacity(ids, experts, align)
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

// permutedCapacity returns the largest number of copies and unused rows that ids can need. It is a
// multiple of align, because the rows of each expert are.
func permutedCapacity(ids, experts, align int64) int64 {
	copies := ids // if all ids are experts of this rank
	expertsWithCopies := min(experts, ids)
	unusedRows := expertsWithCopies * (align - 1) // after the last copy of each expert
	return (copies + unusedRows) / align * align
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

// Spans returns the memory that Unpermute uses if isUnpermute is set, and otherwise the memory that
// Permute uses. The last span is the output.
func (p *Permutation) Spans(isUnpermute bool) []Span {
	dispatchedRow, computedRow := p.RowBytes()
	layout := p.Layout()
	permuted := Span{
		Name: "permuted", Address: p.Permuted, Bytes: layout.Bytes, Align: RouteAlign,
	}
	if !isUnpermute {
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
		Bytes: p.Route.places(p.Ranks) * computedRow,
	}
	return []Span{permuted, computed, returned}
}

// Validate returns an error if a backend that implements Permuter could not run Unpermute or, if
// isUnpermute is false, Permute. The error matches ErrInvalid.
func (p *Permutation) Validate(isUnpermute bool) error {
	switch {
	case !p.DataType.Valid():
		return invalidError("unknown type %d", p.DataType)
	case p.Align < 1 || p.Align > MaxPermuteAlign:
		return invalidError("experts are aligned to %d rows; want 1 to %d", p.Align, MaxPermuteAlign)
	}

	if err := p.Route.validateLimits(p.DataType); err != nil {
		return err
	}

	if isUnpermute { // the computed rows may be longer than the dispatched ones
		if err := p.Route.validateLimits(BFloat16); err != nil {
			return err
		}
	}

	if rows := p.Layout().Capacity; rows > math.MaxInt32 { // the indexes of copies are int32
		return invalidError("%d permuted rows; want at most %d", rows, math.MaxInt32)
	}

	return validatePermutedSpans(p.Spans(isUnpermute))
}

// validatePermutedSpans checks the alignment of all spans, and that no input overlaps the output,
// the last span.
func validatePermutedSpans(spans []Span) error {
	for _, s := range spans {
		if s.Address%s.Align != 0 {
			return invalidError("the %s rows are not aligned to %d bytes", s.Name, s.Align)
		}
	}

	last := len(spans) - 1
	inputs, output := spans[:last], spans[last]
	for _, s := range inputs {
		isMissing := s.Address == 0 // the caller of Validate reports this
		if !isMissing && rangesOverlap(s.Address, s.Bytes, output.Address, output.Bytes) {
			return invalidError("the %s rows overlap the %s rows", s.Name, output.Name)
		}
	}

	return nil
}
