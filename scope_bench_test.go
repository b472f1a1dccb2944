package symmem_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"testing"

	"symmem"
)

// BenchmarkScope begins and ends scopes without new memory, for each group in turn. A scope must
// take at most 50 ns with any number of registered segments. For comparison, it measures what
// SGLang did before #21392: copying the list of all segments and their blocks, and looking up each
// segment in a map.
func BenchmarkScope(b *testing.B) {
	for _, groups := range []int{1, 8, 64} {
		g := newGrownPool(b, openAlone(b), groups)
		for _, segments := range []int{10, 100, 1000, 10_000} {
			if segments*groups > 64_000 || testing.Short() && segments*groups > 1000 {
				continue // the registration would take too long
			}
			g.grow(b, segments)
			name := fmt.Sprintf("groups=%d/segments=%d", groups, segments)
			b.Run(name+"/by=scope", g.benchmarkScopes)
			b.Run(name+"/by=walk", g.benchmarkSnapshots)
		}
	}
}

func (g *grownPool) benchmarkScopes(b *testing.B) {
	b.ReportAllocs()
	next := 0
	for b.Loop() {
		if next++; next >= len(g.groups) {
			next = 0
		}
		s := g.pool.Begin(g.groups[next])
		if err := s.End(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	checkLimit(b, 50)
}

const barsVariable = "SYMMEM_TEST_BARS"

// checkLimit fails a benchmark that takes more nanoseconds per iteration, if barsVariable is set.
func checkLimit(b *testing.B, limit float64) {
	b.Helper()
	took := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	if os.Getenv(barsVariable) != "" && took > limit {
		b.Errorf("%.1f ns, want at most %.0f", took, limit)
	}
}

type record struct {
	address uintptr
	bytes   int64
	blocks  []symmem.Buffer
}

func (g *grownPool) benchmarkSnapshots(b *testing.B) {
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

// BenchmarkIsSymmetric queries ranges inside and outside windows. A query must take at most 50 ns.
// For comparison, it measures a search of the list of windows.
func BenchmarkIsSymmetric(b *testing.B) {
	g := newGrownPool(b, openAlone(b), 1)
	for _, segments := range []int{10, 1000, 10_000} {
		if testing.Short() && segments > 1000 {
			continue
		}
		g.grow(b, segments)
		windows := g.records()
		for _, hit := range []bool{true, false} {
			addresses := g.queryAddresses(hit)
			name := fmt.Sprintf("segments=%d/answer=%t", segments, hit)
			benchmarkQueries(b, name+"/by=query", 50, addresses, hit, func(a uintptr) bool {
				return g.rt.Interop().IsSymmetric(g.rt.World(), a, queryBytes)
			})
			benchmarkQueries(b, name+"/by=walk", math.Inf(1), addresses, hit, func(a uintptr) bool {
				return isInWindow(windows, a)
			})
		}
	}
}

func benchmarkQueries(
	b *testing.B, name string, limit float64, addresses []uintptr, want bool, query func(uintptr) bool,
) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if query(addresses[i%len(addresses)]) != want {
				b.Fatalf("got %v, want %v", !want, want)
			}
		}
		checkLimit(b, limit)
	})
}

const queryBytes = 64 << 10

// queryAddresses returns addresses of ranges inside windows or, if hit is false, of ranges before
// the first window, after the last one, or across its end.
func (g *grownPool) queryAddresses(hit bool) []uintptr {
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

func isInWindow(windows []record, a uintptr) bool {
	for i := range windows {
		w := &windows[i]
		if a >= w.address && a+queryBytes <= w.address+uintptr(w.bytes) {
			return true
		}
	}
	return false
}

// grownPool is a pool whose segments are registered with each of the groups. With PyTorch's sizing,
// two blocks of 1 MiB fill a segment, so that a benchmark can choose the number of segments.
type grownPool struct {
	rt     *symmem.Runtime
	pool   *symmem.Pool
	groups []*symmem.Group
	blocks []symmem.Buffer
}

var errSegments = errors.New("the pool has the wrong number of segments")

const halfSegment = 1 << 20

// newGrownPool creates an empty pool, and groups of all ranks.
func newGrownPool(tb testing.TB, rt *symmem.Runtime, groups int) *grownPool {
	tb.Helper()
	pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), Sizing: symmem.SizeAsPyTorch})
	if err != nil {
		tb.Fatal(err)
	}
	g := &grownPool{rt: rt, pool: pool, groups: []*symmem.Group{rt.World()}}
	for len(g.groups) < groups {
		group, err := rt.World().Split(tb.Context(), 0, rt.Rank())
		if err != nil {
			tb.Fatal(err)
		}
		g.groups = append(g.groups, group)
	}
	return g
}

func (g *grownPool) allocate(segments int) error {
	for len(g.blocks) < 2*segments {
		b, err := g.pool.Alloc(halfSegment)
		if err != nil {
			return err
		}
		g.blocks = append(g.blocks, b)
	}
	if have := g.pool.Stats().Segments; have != segments {
		return fmt.Errorf("got %d segments, want %d: %w", have, segments, errSegments)
	}
	return nil
}

// grow maps segments up to the given number and registers them with every group.
func (g *grownPool) grow(tb testing.TB, segments int) {
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

func (g *grownPool) records() []record {
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
