package symmem_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"testing"

	"symmem"
)

// BenchmarkScope begins and ends scopes with nothing new, of the groups in turns. It is to take
// 50 ns at most, however much is registered. The other way is a snapshot walk, as SGLang had before
// #21392: copy the list of all segments with their blocks, and look each up in the map of those
// that are registered.
func BenchmarkScope(b *testing.B) {
	for _, groups := range []int{1, 8, 64} {
		g := newGrown(b, openAlone(b), groups)
		for _, segments := range []int{10, 100, 1000, 10_000} {
			if segments*groups > 64_000 || testing.Short() && segments*groups > 1000 {
				continue // takes long to register
			}
			g.grow(b, segments)
			name := fmt.Sprintf("groups=%d/segments=%d", groups, segments)
			b.Run(name+"/by=scope", g.scopes)
			b.Run(name+"/by=walk", g.snapshots)
		}
	}
}

func (g *grown) scopes(b *testing.B) {
	b.ReportAllocs()
	at := 0
	for b.Loop() {
		if at++; at >= len(g.groups) {
			at = 0
		}
		s := g.pool.Begin(g.groups[at])
		if err := s.End(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	within(b, 50)
}

// barsVariable makes benchmarks fail that take longer than the design allows.
const barsVariable = "SYMMEM_TEST_BARS"

// within fails a benchmark that has taken more nanoseconds for each turn, if that is asked for.
func within(b *testing.B, bar float64) {
	b.Helper()
	took := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	if os.Getenv(barsVariable) != "" && took > bar {
		b.Errorf("%.1f ns, the bar is %.0f", took, bar)
	}
}

// record is a segment as a snapshot has it.
type record struct {
	address uintptr
	bytes   int64
	blocks  []symmem.Buffer
}

func (g *grown) snapshots(b *testing.B) {
	source, registered := g.records(), map[uintptr]bool{}
	for _, r := range source {
		registered[r.address] = true
	}
	b.ReportAllocs()
	for b.Loop() {
		copied := make([]record, len(source))
		for i, r := range source {
			r.blocks = append([]symmem.Buffer(nil), r.blocks...)
			copied[i] = r
		}
		for _, r := range copied {
			if !registered[r.address] {
				b.Fatal("a segment is not registered")
			}
		}
	}
}

// BenchmarkIsSymmetric asks for ranges inside windows and outside. It is to take 50 ns at most. The
// other way is a walk over the list of windows.
func BenchmarkIsSymmetric(b *testing.B) {
	g := newGrown(b, openAlone(b), 1)
	for _, segments := range []int{10, 1000, 10_000} {
		if testing.Short() && segments > 1000 {
			continue
		}
		g.grow(b, segments)
		windows := g.records()
		for _, hit := range []bool{true, false} {
			asked := g.questions(hit)
			name := fmt.Sprintf("segments=%d/answer=%t", segments, hit)
			asking(b, name+"/by=query", 50, asked, hit, func(a uintptr) bool {
				return g.rt.Interop().IsSymmetric(g.rt.World(), a, queryBytes)
			})
			asking(b, name+"/by=walk", math.Inf(1), asked, hit, func(a uintptr) bool {
				return walkFinds(windows, a)
			})
		}
	}
}

// asking asks the same questions again and again.
func asking(
	b *testing.B, name string, bar float64, asked []uintptr, want bool, answer func(uintptr) bool,
) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if answer(asked[i%len(asked)]) != want {
				b.Fatal("a query was answered wrongly")
			}
		}
		within(b, bar)
	})
}

// queryBytes is the length of the ranges that are asked for.
const queryBytes = 64 << 10

// questions are addresses all over the windows, or as many outside of them: before the first,
// behind the last, and so close to an end that the range runs over it.
func (g *grown) questions(hit bool) []uintptr {
	const many = 1 << 10
	var addresses []uintptr
	last := g.blocks[len(g.blocks)-1]
	for i := range many {
		b := g.blocks[i*7919%len(g.blocks)]
		switch {
		case hit:
			addresses = append(addresses, b.Address()+uintptr(i%15)*queryBytes)
		case i%3 == 0:
			addresses = append(addresses, g.blocks[0].Address()-queryBytes)
		case i%3 == 1:
			addresses = append(addresses, last.Address()+uintptr(last.Size())-queryBytes/2)
		default:
			addresses = append(addresses, last.Address()+uintptr(last.Size())+uintptr(i))
		}
	}
	return addresses
}

// walkFinds walks the windows.
func walkFinds(windows []record, a uintptr) bool {
	for i := range windows {
		w := &windows[i]
		if a >= w.address && a+queryBytes <= w.address+uintptr(w.bytes) {
			return true
		}
	}
	return false
}

// grown is a pool of one rank with a chosen number of segments, all of them registered with each of
// a number of groups. It takes PyTorch's sizing, whose segments for small blocks have 2 MiB: two
// blocks of 1 MiB fill one, so the number of segments is exact.
type grown struct {
	rt     *symmem.Runtime
	pool   *symmem.Pool
	groups []*symmem.Group
	blocks []symmem.Buffer
}

// errSegments means that a pool did not get the number of segments that a figure needs.
var errSegments = errors.New("the pool has another number of segments than wanted")

// halfSegment is a block of which two fill a segment.
const halfSegment = 1 << 20

// newGrown splits a rank's world into so many groups of all its ranks and makes an empty pool.
func newGrown(tb testing.TB, rt *symmem.Runtime, groups int) *grown {
	tb.Helper()
	pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), Sizing: symmem.SizeAsPyTorch})
	if err != nil {
		tb.Fatal(err)
	}
	g := &grown{rt: rt, pool: pool, groups: []*symmem.Group{rt.World()}}
	for len(g.groups) < groups {
		group, err := rt.World().Split(tb.Context(), 0, rt.Rank())
		if err != nil {
			tb.Fatal(err)
		}
		g.groups = append(g.groups, group)
	}
	return g
}

// allocate maps segments until the pool has so many.
func (g *grown) allocate(segments int) error {
	for len(g.blocks) < 2*segments {
		b, err := g.pool.Alloc(halfSegment)
		if err != nil {
			return err
		}
		g.blocks = append(g.blocks, b)
	}
	if have := g.pool.Stats().Segments; have != segments {
		return fmt.Errorf("%d instead of %d: %w", have, segments, errSegments)
	}
	return nil
}

// grow maps segments and registers them with every group.
func (g *grown) grow(tb testing.TB, segments int) {
	tb.Helper()
	if err := g.allocate(segments); err != nil {
		tb.Fatal(err)
	}
	for _, group := range g.groups {
		if err := g.pool.Register(tb.Context(), group); err != nil {
			tb.Fatal(err)
		}
	}
}

func (g *grown) records() []record {
	var source []record
	for s := range g.pool.Segments() {
		source = append(source, record{address: s.Address, bytes: s.Bytes})
	}
	for _, b := range g.blocks {
		r := &source[b.Segment()]
		r.blocks = append(r.blocks, b)
	}
	return source
}
