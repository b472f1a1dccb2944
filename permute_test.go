package symmem_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"symmem"
	bits "symmem/internal/reduce"
)

// permuteCase is a layer of a mixture of experts with random shapes and tokens. It runs on one
// rank:
//
//   - Dispatch sends each token's row to the ranks of its experts.
//   - Permute groups the received rows by expert.
//   - The experts compute a row from each of these rows.
//   - Unpermute returns the computed rows to the order of Dispatch.
//   - Combine sends them back and adds them up.
type permuteCase struct {
	*routeCase
	dispatch, combine symmem.RouteArgs
	permute           symmem.PermuteArgs
	layout            symmem.PermutedLayout // of permute.Permuted
}

// newPermuteCase draws the shape and the tokens of a layer, and allocates its memory. The rows that
// Combine sends are in symmetric memory, and the results are not.
func newPermuteCase(c *routeCase) *permuteCase {
	c.drawShape()
	c.Type = symmem.BFloat16
	p := &permuteCase{routeCase: c}
	p.drawAllTokens()
	p.dispatch = c.args()
	alignments := []int64{0, 1, 8, 24} // 0 selects the default
	p.permute = symmem.PermuteArgs{
		Routing: c.Routing, Align: alignments[c.draw.IntN(len(alignments))],
		Dispatched: p.dispatch.Recv,
	}
	n := len(c.tokens) // number of ranks
	p.layout = c.PermutedLayout(n, p.permute.Align)
	private, symmetric := c.pools[0], c.pools[1]
	p.permute.Permuted = memoryOf(c, private, make([]uint8, p.layout.Bytes))
	p.permute.Computed = memoryOf(c, private, make([]uint16, p.layout.Capacity*c.Hidden))
	p.permute.Returned = memoryOf(c, symmetric, make([]uint16, int64(n)*c.MaxTokens*c.Hidden))
	p.combine = p.dispatch
	p.combine.Send = p.permute.Returned
	p.combine.Recv = memoryOf(c, private, make([]uint16, p.dispatch.Tokens*c.Hidden))
	return p
}

// drawAllTokens draws new tokens, with finite elements, for all ranks.
func (p *permuteCase) drawAllTokens() {
	for _, x := range p.tokens {
		*x = *p.drawTokens(x.count)
		// Replace the random bits, which may encode infinities, by numbers from -0.5 to 0.5.
		for i := 0; i < len(x.rows); i += 2 {
			binary.LittleEndian.PutUint16(x.rows[i:], bits.BFloat16Bits(p.draw.Float32()-0.5))
		}
	}
}

// compute returns the result of an expert for an element, both encoded as bfloat16. The factor
// differs between neighboring experts.
func compute(expert int, element uint16) uint16 {
	return bits.BFloat16Bits(bits.BFloat16Value(element) * float32(1+expert%5))
}

// runExperts computes a row for each row that Permute has written. Rows without a token, which fill
// gaps between experts, become NaN. So check fails if Unpermute uses them.
func (p *permuteCase) runExperts() {
	const notANumber = 0x7fff          // as bfloat16
	const idBytes, elementBytes = 4, 2 // of an expert's id in this rank, and of bfloat16
	permuted := read[uint8](p.rank, p.permute.Permuted)
	first := p.FirstExpert(len(p.tokens), p.Rank())
	computed := make([]uint16, p.layout.Capacity*p.Hidden)
	for i := range computed {
		row := int64(i) / p.Hidden
		expert := int32(binary.LittleEndian.Uint32(permuted[p.layout.Experts+idBytes*row:]))
		if expert < 0 { // the row belongs to no token
			computed[i] = notANumber
			continue
		}

		element := binary.LittleEndian.Uint16(permuted[p.layout.Rows+elementBytes*int64(i):])
		computed[i] = compute(first+int(expert), element)
	}

	write(p.rank, p.permute.Computed, computed)
}

// check compares the combined rows of this rank's tokens with the definition of the layer: the sum
// of the ranks' parts, in the order of ranks. resultOf returns an expert's result for an element.
func (p *permuteCase) check(resultOf func(expert int, element uint16) uint16) {
	p.t.Helper()
	own := p.tokens[p.Rank()]
	if own.count == 0 {
		return
	}

	combined := read[uint16](p.rank, p.combine.Recv)
	for token := range own.count {
		for i := range int(p.Hidden) {
			index := token*int(p.Hidden) + i
			element := binary.LittleEndian.Uint16(own.rows[2*index:])
			total, isFirst := float32(0), true
			for r := range p.tokens {
				part, hasPart := p.partOf(r, own, token, element, resultOf)
				switch {
				case hasPart && isFirst: // not 0 + part, which would turn -0 into 0
					total, isFirst = part, false
				case hasPart:
					total += part
				}
			}

			if got, want := combined[index], bits.BFloat16Bits(total); got != want {
				p.failf("%v, aligned to %d: element %d of token %d = %v, want %v", p.routeCase,
					p.permute.Align, i, token, bits.BFloat16Value(got), bits.BFloat16Value(want))
			}
		}
	}
}

// partOf returns the weighted sum of the results of a rank's experts for an element, rounded to
// bfloat16. hasPart is false if the token is routed to none of these experts.
func (p *permuteCase) partOf(
	expertRank int, x *routedTokens, token int, element uint16, resultOf func(int, uint16) uint16,
) (sum float32, hasPart bool) {
	for k := range p.TopK {
		id := x.ids[token*p.TopK+k]
		if p.owner(id) != expertRank {
			continue
		}

		product := bits.BFloat16Value(resultOf(int(id), element)) * x.weights[token*p.TopK+k]
		if hasPart {
			sum += float32(product) // the conversion prevents a fused multiply-add
		} else { // not 0 + product, which would turn -0 into 0
			sum, hasPart = product, true
		}
	}

	return bits.BFloat16Value(bits.BFloat16Bits(sum)), hasPart
}

// TestPermutedRowsReachTheirExperts runs whole layers and compares their results with the
// definition. Experts differ, so that a row at a wrong expert is an error.
func TestPermutedRowsReachTheirExperts(t *testing.T) {
	ranks := []int{2, 3}
	const layers = 4 // each with other shapes and tokens
	runRoutes(t, ranks, symmem.Options{Path: symmem.PathAuto}, func(c *routeCase) {
		for range layers {
			p := newPermuteCase(c)
			g := c.World()
			c.ok(g.Dispatch(c.ctx, p.dispatch, nil))
			c.ok(g.Permute(p.permute, nil))
			p.runExperts()
			c.ok(g.Unpermute(p.permute, nil))
			c.ok(g.Combine(c.ctx, p.combine, nil))
			p.check(compute)
		}
	})
}

// TestCapturedPermutations captures a layer in a graph, and replays it with new tokens. Its experts
// return their input, so that no kernel is necessary between Permute and Unpermute.
func TestCapturedPermutations(t *testing.T) {
	ranks := []int{2}
	runRoutes(t, ranks, symmem.Options{Path: symmem.PathAuto}, func(c *routeCase) {
		p := newPermuteCase(c)
		const elementBytes = 2 // of bfloat16
		permutedRows, err := p.permute.Permuted.Slice(
			p.layout.Rows, elementBytes*p.layout.Capacity*c.Hidden)
		c.ok(err)
		p.permute.Computed = permutedRows
		c.ok(c.pools[1].Register(c.ctx, c.World())) // not possible during the capture
		s := c.DefaultStream()
		c.ok(s.BeginCapture())
		c.ok(c.World().Dispatch(c.ctx, p.dispatch, nil))
		c.ok(c.World().Permute(p.permute, nil))
		c.ok(c.World().Unpermute(p.permute, nil))
		c.ok(c.World().Combine(c.ctx, p.combine, nil))
		graph, err := s.EndCapture()
		c.ok(err)
		const replays = 3
		for range replays {
			p.drawAllTokens()
			if x := c.tokens[c.Rank()]; x.count > 0 { // a rank without tokens has no memory for them
				write(c.rank, p.dispatch.IDs, x.ids)
				write(c.rank, p.dispatch.Weights, x.weights)
				write(c.rank, p.dispatch.Send, x.rows)
			}

			c.ok(graph.Launch(s))
			c.synchronize()
			p.check(func(_ int, element uint16) uint16 { return element }) // the input
		}

		c.ok(graph.Close())
	})
}

// TestInvalidPermutations checks that Permute and Unpermute refuse the same invalid arguments, and
// that neither of them works in place.
func TestInvalidPermutations(t *testing.T) {
	ranks := []int{2}
	runRoutes(t, ranks, symmem.Options{Path: symmem.PathAuto}, func(c *routeCase) {
		p := newPermuteCase(c)
		tooShort, err := p.permute.Permuted.Slice(0, p.permute.Permuted.Bytes()-128)
		c.ok(err)
		buffer := c.alloc(c.pools[0], p.layout.Bytes)
		freed := buffer.Memory()
		c.ok(buffer.Free())
		for _, row := range []struct {
			name   string
			change func(a *symmem.PermuteArgs) // makes valid arguments invalid
			want   error
		}{
			{
				name:   "an alignment of -1",
				change: func(a *symmem.PermuteArgs) { a.Align = -1 }, want: symmem.ErrInvalid,
			},
			{
				name:   "an alignment above 4096",
				change: func(a *symmem.PermuteArgs) { a.Align = 4097 }, want: symmem.ErrInvalid,
			},
			{
				name:   "more than 512 experts",
				change: func(a *symmem.PermuteArgs) { a.Experts = 513 }, want: symmem.ErrInvalid,
			},
			{
				name:   "rows that are no multiple of 16 bytes",
				change: func(a *symmem.PermuteArgs) { a.Hidden++ }, want: symmem.ErrInvalid,
			},
			{
				name:   "missing memory",
				change: func(a *symmem.PermuteArgs) { a.Permuted = symmem.Memory{} },
				want:   symmem.ErrOutOfRange,
			},
			{
				name:   "memory for too few rows",
				change: func(a *symmem.PermuteArgs) { a.Permuted = tooShort },
				want:   symmem.ErrOutOfRange,
			},
			{
				name:   "freed memory",
				change: func(a *symmem.PermuteArgs) { a.Permuted = freed }, want: symmem.ErrFreed,
			},
		} {
			a := p.permute
			row.change(&a)
			if err := c.World().Permute(a, nil); !errors.Is(err, row.want) {
				c.failf("Permute with %s: got %v, want %v", row.name, err, row.want)
			}

			if err := c.World().Unpermute(a, nil); !errors.Is(err, row.want) {
				c.failf("Unpermute with %s: got %v, want %v", row.name, err, row.want)
			}
		}

		a := p.permute
		a.Permuted = a.Dispatched
		if err := c.World().Permute(a, nil); !errors.Is(err, symmem.ErrInvalid) {
			c.failf("Permute in place: got %v, want ErrInvalid", err)
		}

		a = p.permute
		a.Returned = a.Computed
		if err := c.World().Unpermute(a, nil); !errors.Is(err, symmem.ErrInvalid) {
			c.failf("Unpermute in place: got %v, want ErrInvalid", err)
		}
	})
}
