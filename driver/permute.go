package driver

import "math"

// Permutation holds the arguments of Permute and Unpermute. A mixture of experts calls both after a
// Dispatch. The output of the Dispatch has places (indexes), and some have a row and its expert
// ids.
//
// Permute sorts copies of the rows by expert, and then by place. For example, row A is for the
// experts 0 and 1, row B for expert 1, and row C for expert 0. With Align 4, Permute writes:
//
//	A C . . A B . .     (. is an unused row)
//
// Each expert computes a row from each copy. Unpermute multiplies computed rows by the weights of
// their experts, and writes the sum for row A to the place of row A. It adds in the order of the
// ids, in float32, and rounds the sum to BFloat16. It does not write to places without a row.
type Permutation struct {
	Route       Route    // of the Dispatch; Tokens and addresses are not used
	DataType    DataType // of the dispatched rows
	Rank, Ranks int      // number of this rank in the group, and size of the group
	Align       int64    // alignment, in rows, of the first copy of each expert

	// These are addresses.
	Dispatched uintptr // output of the Dispatch, with a RouteLayout
	Permuted   uintptr // output of Permute, with a PermutedLayout
	Computed   uintptr // BFloat16 rows of the experts, each at the index of its copy in Permuted
	Returned   uintptr // output of Unpermute: BFloat16 sums, by place
}

// MaxPermuteAlign is the largest Permutation.Align.
const MaxPermuteAlign = 1 << 12

// PermutedLayout holds the offsets, in bytes, of the arrays in the output of Permute.
type PermutedLayout struct {
	// The next arrays have an entry for each copy and unused row. Unused rows have the expert -1,
	// and their other entries are not written.
	Rows    int64
	Scales  int64 // float32
	Weights int64 // float32
	Experts int64 // int32; indexes among this rank's experts

	Places int64 // int32; for each expert id in the Dispatch's output: index of the copy, or -1

	// Firsts and Counts have entries for MostExperts experts, although this rank may own fewer.
	Firsts   int64 // int32; index of each expert's first copy, and at the end the number of rows
	Counts   int64 // int32; number of copies of each expert
	Received int64 // int32; number of dispatched rows from each rank

	Bytes    int64 // size of the output
	Capacity int64 // length of Rows: the largest number of copies and unused rows
}

// MostExperts returns the largest number of experts of a rank: Experts/ranks, rounded up.
func (r *Route) MostExperts(ranks int) int { return (r.Experts + ranks - 1) / ranks }

// PermutedLayout returns the layout for a Permutation with rows of rowBytes and the given Align.
func (r *Route) PermutedLayout(ranks int, rowBytes, align int64) PermutedLayout {
	idCount := r.places(ranks) * int64(r.TopK)
	experts := int64(r.MostExperts(ranks))
	capacity := permutedCapacity(idCount, experts, align)
	var b layoutBuilder
	l := PermutedLayout{Capacity: capacity}
	l.Rows = b.add(capacity * rowBytes)
	l.Scales = b.add(capacity * r.Scales * wordBytes)
	l.Weights = b.add(capacity * wordBytes)
	l.Experts = b.add(capacity * wordBytes)
	l.Places = b.add(idCount * wordBytes)
	l.Firsts = b.add((experts + 1) * wordBytes)
	l.Counts = b.add(experts * wordBytes)
	l.Received = b.add(int64(ranks) * wordBytes)
	l.Bytes = b.bytes
	return l
}

// permutedCapacity returns PermutedLayout.Capacity: there is a copy for every id, and each expert
// has as many unused rows as possible.
func permutedCapacity(idCount, experts, align int64) int64 {
	expertsWithCopies := min(experts, idCount)
	maxUnusedPerExpert := align - 1
	rows := idCount + expertsWithCopies*maxUnusedPerExpert
	return rows - rows%align // the rows of each expert are a multiple of align
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

// Spans returns the inputs and then the output of Permute or, if isUnpermute is set, of Unpermute.
func (p *Permutation) Spans(isUnpermute bool) []Span {
	dispatchedRow, computedRow := p.RowBytes()
	layout := p.Layout()
	span := func(name string, address uintptr, bytes int64) Span {
		return Span{Name: name, Address: address, Bytes: bytes, Align: RouteAlign}
	}
	permuted := span("permuted", p.Permuted, layout.Bytes)
	if isUnpermute {
		computed := span("computed", p.Computed, layout.Capacity*computedRow)
		returned := span("returned", p.Returned, p.Route.places(p.Ranks)*computedRow)
		return []Span{permuted, computed, returned}
	}

	dispatchedBytes := p.Route.Layout(p.Ranks, dispatchedRow).Bytes
	return []Span{span("dispatched", p.Dispatched, dispatchedBytes), permuted}
}

// Validate checks the arguments of Permute or, if isUnpermute is set, of Unpermute. Errors match
// ErrInvalid. Missing addresses are not an error.
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

	if isUnpermute { // computed rows may be longer
		if err := p.Route.validateLimits(BFloat16); err != nil {
			return err
		}
	}

	if rows := p.Layout().Capacity; rows > math.MaxInt32 { // the indexes of copies are int32
		return invalidError("%d permuted rows; want at most %d", rows, math.MaxInt32)
	}

	return validatePermutedSpans(p.Spans(isUnpermute))
}

// validatePermutedSpans checks the alignment of spans, and that no input overlaps the output, which
// is the last span.
func validatePermutedSpans(spans []Span) error {
	for _, s := range spans {
		if s.Address%s.Align != 0 {
			return invalidError("the %s rows are not aligned to %d bytes", s.Name, s.Align)
		}
	}

	last := len(spans) - 1
	inputs, output := spans[:last], spans[last]
	for _, s := range inputs {
		isSet := s.Address != 0
		if isSet && rangesOverlap(s.Address, s.Bytes, output.Address, output.Bytes) {
			return invalidError("the %s rows overlap the %s rows", s.Name, output.Name)
		}
	}

	return nil
}
