package symmem_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"symmem"
	bits "symmem/internal/reduce"
)

// routeCase describes a dispatch and the combine that follows. All ranks draw the same numbers, so
// each rank knows the inputs of all ranks.
type routeCase struct {
	*rank
	draw  *rand.Rand
	pools [2]*symmem.Pool // the second one is registered
	symmem.Routing
	kind   string
	tokens []*routedTokens // by rank
	owners []int           // by expert
}

// routedTokens holds the inputs of a rank.
type routedTokens struct {
	count   int
	ids     []int32
	weights []float32
	rows    []uint8
	scales  []float32
}

var routeKinds = []string{
	"uniform", "one hot expert", "duplicates", "unknown experts", "no experts",
}

func (c *routeCase) drawShape() {
	n := len(c.tokens)
	c.Routing = symmem.Routing{
		Experts: 1 + c.draw.IntN(40), TopK: 1 + c.draw.IntN(16),
		MaxTokens: 1 + c.draw.Int64N([]int64{3, 40, 700}[c.draw.IntN(3)]),
		Hidden:    16 * (1 + c.draw.Int64N(40)), Type: symmem.BFloat16,
		Scales: c.draw.Int64N(6),
	}
	if c.draw.IntN(2) == 0 {
		c.Type = symmem.Uint8
	}

	if c.draw.IntN(4) == 0 {
		c.Experts = 512
	}

	c.kind = routeKinds[c.draw.IntN(len(routeKinds))]
	c.setOwners()
	for r := range n {
		count := c.draw.IntN(int(c.MaxTokens) + 1)
		if c.draw.IntN(4) == 0 {
			count = 0
		}

		c.tokens[r] = c.drawTokens(count)
	}
}

func (c *routeCase) setOwners() {
	n := len(c.tokens)
	c.owners = nil
	for r := range n {
		size := c.Experts / n
		if r < c.Experts%n {
			size++
		}

		if first := c.FirstExpert(n, r); first != len(c.owners) {
			c.failf("%d experts on %d ranks: rank %d begins at %d, want %d", c.Experts, n, r, first,
				len(c.owners))
		}

		c.owners = append(c.owners, slices.Repeat([]int{r}, size)...)
	}
}

func (c *routeCase) drawTokens(count int) *routedTokens {
	x := &routedTokens{count: count}
	hot := int32(c.draw.IntN(c.Experts))
	for range count * c.TopK {
		id := c.draw.Int32N(int32(c.Experts))
		switch {
		case c.kind == "one hot expert":
			id = hot
		case c.kind == "duplicates":
			id = (hot + id%2) % int32(c.Experts)
		case c.kind == "no experts" && c.draw.IntN(3) > 0:
			id = -1
		case c.kind == "unknown experts" && c.draw.IntN(2) > 0:
			id = []int32{-1, -2, int32(c.Experts), 1 << 30, -1 << 31, 1<<31 - 1}[c.draw.IntN(6)]
		}

		x.ids = append(x.ids, id)
		x.weights = append(x.weights, c.draw.Float32())
	}

	x.rows = make([]uint8, int64(count)*c.rowBytes())
	for i := range x.rows {
		x.rows[i] = uint8(c.draw.Uint32())
	}

	for range int64(count) * c.Scales {
		x.scales = append(x.scales, c.draw.Float32())
	}

	return x
}

func (c *routeCase) rowBytes() int64 { return c.Hidden * int64(c.Type.Size()) }

func (c *routeCase) owner(id int32) int {
	if id < 0 || int(id) >= len(c.owners) {
		return -1
	}

	return c.owners[id]
}

// sentTo lists the tokens of rank src with an expert on rank dst.
func (c *routeCase) sentTo(src, dst int) (tokens []int) {
	x := c.tokens[src]
	for token := range x.count {
		for _, id := range x.ids[token*c.TopK : (token+1)*c.TopK] {
			if c.owner(id) == dst {
				tokens = append(tokens, token)
				break
			}
		}
	}

	return tokens
}

func memoryOf[T symmem.Element](c *routeCase, p *symmem.Pool, v []T) symmem.Memory {
	if len(v) == 0 {
		return symmem.Memory{}
	}

	bytes := int64(len(v)) * symmem.Host(v[:1]).Bytes()
	m, err := c.alloc(p, bytes).Memory().Slice(0, bytes)
	c.ok(err)
	write(c.rank, m, v)
	return m
}

// args allocates the arguments of a dispatch.
func (c *routeCase) args() symmem.RouteArgs {
	x := c.tokens[c.Rank()]
	layout := c.Layout(len(c.tokens))
	return symmem.RouteArgs{
		Routing: c.Routing, Tokens: int64(x.count), Send: memoryOf(c, c.pools[0], x.rows),
		IDs: memoryOf(c, c.pools[0], x.ids), Weights: memoryOf(c, c.pools[0], x.weights),
		RowScales: memoryOf(c, c.pools[0], x.scales),
		Recv:      memoryOf(c, c.pools[1], slices.Repeat([]uint8{0xaa}, int(layout.Bytes))),
	}
}

func (c *routeCase) String() string {
	counts := make([]int, len(c.tokens))
	for r, x := range c.tokens {
		counts[r] = x.count
	}

	return fmt.Sprintf("%s, tokens %v, %+v", c.kind, counts, c.Routing)
}

func (c *routeCase) checkDispatch(a *symmem.RouteArgs) {
	c.t.Helper()
	got := read[uint8](c.rank, a.Recv)
	layout := c.Layout(len(c.tokens))
	int32At := func(at int64) int32 { return int32(binary.LittleEndian.Uint32(got[at:])) }
	for src, x := range c.tokens {
		tokens := c.sentTo(src, c.Rank())
		if n := int32At(layout.Counts + 4*int64(src)); int(n) != len(tokens) {
			c.failf("%v: %d rows from rank %d, want %d", c, n, src, len(tokens))
		}

		for place := range int(c.MaxTokens) {
			at := int64(src)*c.MaxTokens + int64(place)
			if place >= len(tokens) {
				for k := range int64(c.TopK) {
					if id := int32At(layout.IDs + 4*(at*int64(c.TopK)+k)); id != -1 {
						c.failf("%v: id %d at the unused place %d of rank %d", c, id, place, src)
					}
				}

				continue
			}

			c.checkRow(got, x, src, place, tokens[place])
		}
	}

	unknown := 0
	for _, id := range c.tokens[c.Rank()].ids {
		if id != -1 && c.owner(id) < 0 {
			unknown++
		}
	}

	if n := int32At(layout.Counts + 4*int64(len(c.tokens))); int(n) != unknown {
		c.failf("%v: %d unknown experts, want %d", c, n, unknown)
	}
}

func (c *routeCase) checkRow(got []uint8, x *routedTokens, src, place, token int) {
	layout, at := c.Layout(len(c.tokens)), int64(src)*c.MaxTokens+int64(place)
	check := func(what string, offset int64, want []uint8) {
		size := int64(len(want))
		if found := got[offset+at*size:][:size]; !slices.Equal(found, want) {
			c.failf("%v: %s of token %d of rank %d at place %d: %v, want %v", c, what, token, src, place,
				found, want)
		}
	}
	check("row", layout.Rows, x.rows[int64(token)*c.rowBytes():][:c.rowBytes()])
	var scales, weights, ids []uint8
	for i := range c.Scales {
		scales = append(scales, float32Bytes(x.scales[int64(token)*c.Scales+i])...)
	}

	for i := range c.TopK {
		weights = append(weights, float32Bytes(x.weights[token*c.TopK+i])...)
		id := x.ids[token*c.TopK+i]
		if c.owner(id) != c.Rank() {
			id = -1
		}

		ids = binary.LittleEndian.AppendUint32(ids, uint32(id))
	}

	check("scales", layout.Scales, scales)
	check("weights", layout.Weights, weights)
	check("ids", layout.IDs, ids)
}

func float32Bytes(f float32) []uint8 {
	return binary.LittleEndian.AppendUint32(nil, math.Float32bits(f))
}

// computed returns the row that the experts of a rank compute for a token of rank src. It depends
// on nothing else.
func (c *routeCase) computed(expertRank, src, token int) []uint16 {
	random := rand.New(rand.NewPCG(uint64(expertRank)<<32|uint64(token), uint64(src)))
	row := make([]uint16, c.Hidden)
	for i := range row {
		row[i] = bits.BFloat16Bits(random.Float32() - 0.5)
	}

	return row
}

// combineArgs allocates the arguments of a combine. Places without rows contain NaNs.
func (c *routeCase) combineArgs(dispatch *symmem.RouteArgs) symmem.RouteArgs {
	rows := slices.Repeat([]uint16{0x7fff}, len(c.tokens)*int(c.MaxTokens*c.Hidden))
	for src := range c.tokens {
		for place, token := range c.sentTo(src, c.Rank()) {
			copy(rows[(int64(src)*c.MaxTokens+int64(place))*c.Hidden:], c.computed(c.Rank(), src, token))
		}
	}

	a := *dispatch
	a.Send = memoryOf(c, c.pools[1], rows)
	a.Recv = memoryOf(c, c.pools[0], make([]uint16, a.Tokens*c.Hidden))
	return a
}

func (c *routeCase) checkCombine(a *symmem.RouteArgs) {
	c.t.Helper()
	if a.Tokens == 0 {
		return
	}

	got := read[uint16](c.rank, a.Recv)
	want := make([][]float32, a.Tokens)
	for r := range c.tokens {
		for _, token := range c.sentTo(c.Rank(), r) {
			row := c.computed(r, c.Rank(), token)
			isFirst := want[token] == nil
			if isFirst {
				want[token] = make([]float32, c.Hidden)
			}

			for i, v := range row {
				want[token][i] += bits.BFloat16Value(v)
			}
		}
	}

	for token, sums := range want {
		for i := range c.Hidden {
			sum := float32(0)
			if sums != nil {
				sum = sums[i]
			}

			if v := got[int64(token)*c.Hidden+i]; v != bits.BFloat16Bits(sum) {
				c.failf("%v: element %d of token %d = %v, want %v", c, i, token, bits.BFloat16Value(v), sum)
			}
		}
	}
}

func runRoutes(t *testing.T, ranks []int, o symmem.Options, test func(c *routeCase)) {
	seed := rand.Uint64()
	for _, n := range ranks {
		if n == 1 && os.Getenv(backendVariable) != "" {
			continue // GPUs have no direct path in a group of one rank
		}

		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Logf("seed %d", seed)
			runRanks(t, n, o, func(r *rank) { test(newRouteCase(r, seed)) })
		})
	}
}

func newRouteCase(r *rank, seed uint64) *routeCase {
	n := r.World().Size()
	c := &routeCase{
		rank: r, draw: rand.New(rand.NewPCG(seed, uint64(n))), tokens: make([]*routedTokens, n),
	}
	options := symmem.PoolOptions{FirstSegment: 32 * mib}
	c.pools[0] = r.poolWith(options)
	options.Domain = r.World()
	c.pools[1] = r.poolWith(options)
	return c
}

// TestRoutes dispatches random tokens and combines the rows, and compares the results with a
// reference.
func TestRoutes(t *testing.T) {
	runRoutes(t, []int{1, 2, 3, 4, 8}, symmem.Options{Path: symmem.PathAuto}, func(c *routeCase) {
		rounds := 10
		if testing.Short() || os.Getenv(backendVariable) != "" {
			rounds = 4
		}

		for range rounds {
			c.drawShape()
			dispatch := c.args()
			c.ok(c.World().Dispatch(c.ctx, dispatch, nil))
			c.checkDispatch(&dispatch)
			combine := c.combineArgs(&dispatch)
			c.ok(c.World().Combine(c.ctx, combine, nil))
			c.checkCombine(&combine)
		}
	})
}

// TestRoutesOfModels exchanges rows of the sizes that models use, with few and with many tokens.
// One rank is idle.
func TestRoutesOfModels(t *testing.T) {
	counts := []int{4}
	if !testing.Short() && os.Getenv(backendVariable) != "" {
		counts = []int{1, 8, 128, 300}
	}

	runRoutes(t, []int{2, 4, 8}, symmem.Options{Path: symmem.PathAuto}, func(c *routeCase) {
		for _, m := range exchangeModels {
			for _, count := range counts {
				e := exchangeShape{exchangeModel: m, counts: []int64{int64(count)}}
				c.Routing = e.routing()
				c.setOwners()
				c.kind = routeKinds[c.draw.IntN(2)]
				for r := range c.tokens {
					c.tokens[r] = c.drawTokens(count)
				}

				c.tokens[c.draw.IntN(len(c.tokens))] = &routedTokens{}
				dispatch := c.args()
				c.ok(c.World().Dispatch(c.ctx, dispatch, nil))
				c.checkDispatch(&dispatch)
				combine := c.combineArgs(&dispatch)
				c.ok(c.World().Combine(c.ctx, combine, nil))
				c.checkCombine(&combine)
			}
		}
	})
}

// TestCapturedRoutes replays dispatches and combines with new tokens and ids.
func TestCapturedRoutes(t *testing.T) {
	runRoutes(t, []int{3}, symmem.Options{Path: symmem.PathAuto}, func(c *routeCase) {
		c.drawShape()
		dispatch := c.args()
		combine := c.combineArgs(&dispatch)
		c.ok(c.pools[1].Register(c.ctx, c.World()))
		s := c.DefaultStream()
		c.ok(s.BeginCapture())
		for range 5 {
			c.ok(c.World().Dispatch(c.ctx, dispatch, nil))
			c.ok(c.World().Combine(c.ctx, combine, nil))
		}

		g, err := s.EndCapture()
		c.ok(err)
		for range 3 {
			for _, x := range c.tokens {
				*x = *c.drawTokens(x.count)
			}

			if x := c.tokens[c.Rank()]; x.count > 0 {
				write(c.rank, dispatch.IDs, x.ids)
				write(c.rank, dispatch.Weights, x.weights)
				write(c.rank, dispatch.Send, x.rows)
				if c.Scales > 0 {
					write(c.rank, dispatch.RowScales, x.scales)
				}
			}

			again := c.combineArgs(&dispatch)
			c.ok(s.Copy(combine.Send, again.Send))
			c.ok(g.Launch(s))
			c.synchronize()
			c.checkDispatch(&dispatch)
			c.checkCombine(&combine)
		}

		c.ok(g.Close())
	})
}

// TestRowsDoNotDependOnOtherTokens combines the same token alone and with others.
func TestRowsDoNotDependOnOtherTokens(t *testing.T) {
	runRoutes(t, []int{4}, symmem.Options{Path: symmem.PathAuto}, func(c *routeCase) {
		c.drawShape()
		c.kind, c.Experts, c.TopK, c.MaxTokens = "uniform", 4, 16, 50
		c.owners = []int{0, 1, 2, 3}
		first := make([][]uint16, 2)
		var kept []*routedTokens
		for i, count := range []int{50, 1} {
			for r := range c.tokens {
				if i == 0 {
					c.tokens[r] = c.drawTokens(count)
					kept = append(kept, c.tokens[r])
					continue
				}

				x := *kept[r]
				x.count, x.ids, x.weights = 1, x.ids[:c.TopK], x.weights[:c.TopK]
				x.rows, x.scales = x.rows[:c.rowBytes()], x.scales[:c.Scales]
				c.tokens[r] = &x
			}

			dispatch := c.args()
			combine := c.combineArgs(&dispatch)
			c.ok(c.World().Combine(c.ctx, combine, nil))
			first[i] = read[uint16](c.rank, combine.Recv)[:c.Hidden]
		}

		if !slices.Equal(first[0], first[1]) {
			c.failf("the row of the first of 50 tokens differs from that of a single token")
		}
	})
}
