package symmem_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"symmem"
)

// BenchmarkScope begins and ends scopes without new memory, for each group in turn. A scope must
// take at most 50 ns with any number of registered segments. The sub-benchmark by=walk measures
// what SGLang did before its pull request 21392: it copied the list of all segments and their
// blocks, and looked up each segment in a map.
func BenchmarkScope(b *testing.B) {
	for _, groups := range []int{1, 8, 64} {
		g := newGrownPool(b, openAlone(b), groups)
		for _, segments := range []int{10, 100, 1000, 10_000} {
			mostWindows := 64_000 // more would take too long to register
			if testing.Short() {
				mostWindows = 1000
			}

			if segments*groups > mostWindows {
				continue
			}

			g.grow(b, segments)
			name := fmt.Sprintf("groups=%d/segments=%d", groups, segments)
			b.Run(name+"/by=scope", g.benchmarkScopes)
			b.Run(name+"/by=walk", g.benchmarkWalks)
		}
	}
}

func (g *grownPool) benchmarkScopes(b *testing.B) {
	const maxScopeNs = 50
	b.ReportAllocs()
	groupIndex := 0
	for b.Loop() {
		groupIndex++
		if groupIndex >= len(g.groups) {
			groupIndex = 0
		}

		s := g.pool.Begin(g.groups[groupIndex])
		if err := s.End(b.Context()); err != nil {
			b.Fatal(err)
		}
	}

	checkLimit(b, maxScopeNs)
}

// barsVariable is an environment variable. Unless it is empty, benchmarks fail if they exceed their
// time limits.
const barsVariable = "SYMMEM_TEST_BARS"

// checkLimit fails a benchmark that takes more than limitNs per iteration, if barsVariable is set.
func checkLimit(b *testing.B, limitNs float64) {
	b.Helper()
	tookNs := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	if os.Getenv(barsVariable) != "" && tookNs > limitNs {
		b.Errorf("an iteration takes %.1f ns, want at most %.0f", tookNs, limitNs)
	}
}

// segmentRecord is a segment in the lists that the comparisons walk.
type segmentRecord struct {
	address uintptr
	bytes   int64
	blocks  []symmem.Buffer
}

// benchmarkWalks measures SGLang's former check: a copy of all records, and a map look-up for each.
func (g *grownPool) benchmarkWalks(b *testing.B) {
	source := g.records()
	registered := map[uintptr]bool{}
	for _, r := range source {
		registered[r.address] = true
	}

	b.ReportAllocs()
	for b.Loop() {
		copied := make([]segmentRecord, len(source))
		for i, r := range source {
			r.blocks = slices.Clone(r.blocks)
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
// The sub-benchmark by=walk measures a search of the list of windows.
func BenchmarkIsSymmetric(b *testing.B) {
	g := newGrownPool(b, openAlone(b), 1)
	for _, segments := range []int{10, 1000, 10_000} {
		if testing.Short() && segments > 1000 {
			continue
		}

		g.grow(b, segments)
		windows := g.records()
		for _, inWindow := range []bool{true, false} {
			addresses := g.queryAddresses(inWindow)
			name := fmt.Sprintf("segments=%d/answer=%t", segments, inWindow)
			query := func(address uintptr) bool {
				return g.rt.Interop().IsSymmetric(g.rt.World(), address, queryBytes)
			}
			walk := func(address uintptr) bool { return isInWindow(windows, address) }
			maxQueryNs, noLimit := 50.0, math.Inf(1)
			benchmarkQueries(b, name+"/by=query", maxQueryNs, addresses, inWindow, query)
			benchmarkQueries(b, name+"/by=walk", noLimit, addresses, inWindow, walk)
		}
	}
}

// benchmarkQueries runs a sub-benchmark that calls query for each address in turn. It fails if an
// answer is not want, or if a query takes more than limitNs and limits are on (checkLimit).
func benchmarkQueries(
	b *testing.B, name string, limitNs float64, addresses []uintptr, want bool,
	query func(uintptr) bool,
) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			address := addresses[i%len(addresses)]
			if got := query(address); got != want {
				b.Fatalf("the answer for address %#x is %t, want %t", address, got, want)
			}
		}

		checkLimit(b, limitNs)
	})
}

// queryBytes is the size of each queried range. It divides the size of a block.
const queryBytes = 64 << 10

// queryAddresses returns the start addresses of ranges. If inWindow is true, all ranges lie inside
// windows. Otherwise, they lie before the first window, after the last one, or across its end.
func (g *grownPool) queryAddresses(inWindow bool) []uintptr {
	const (
		queries = 1 << 10
		stride  = 7919 // a prime, so that consecutive queries are far apart
		// rangesPerBlock is one less than fit into a block. With an odd number, the range changes each
		// time that the block is queried again.
		rangesPerBlock = halfSegment/queryBytes - 1
	)
	var addresses []uintptr
	last := g.blocks[len(g.blocks)-1]
	end := last.Address() + uintptr(last.Size())
	for i := range queries {
		b := g.blocks[i*stride%len(g.blocks)]
		switch {
		case inWindow:
			addresses = append(addresses, b.Address()+uintptr(i%rangesPerBlock)*queryBytes)
		case i%3 == 0: // before the first window
			addresses = append(addresses, g.blocks[0].Address()-queryBytes)
		case i%3 == 1: // across the end of the last window
			addresses = append(addresses, end-queryBytes/2)
		default: // after the last window
			addresses = append(addresses, end+uintptr(i))
		}
	}

	return addresses
}

// isInWindow reports whether a window contains the queryBytes bytes at address.
func isInWindow(windows []segmentRecord, address uintptr) bool {
	for i := range windows {
		w := &windows[i]
		if address >= w.address && address+queryBytes <= w.address+uintptr(w.bytes) {
			return true
		}
	}

	return false
}

// grownPool is a pool whose segments are registered with each of its groups. A benchmark chooses
// the number of segments.
type grownPool struct {
	rt     *symmem.Runtime
	pool   *symmem.Pool
	groups []*symmem.Group
	blocks []symmem.Buffer // all live blocks, two per segment
}

var errSegments = errors.New("the pool has the wrong number of segments")

// halfSegment is the size of a block. With PyTorch's sizing, two blocks fill a segment.
const halfSegment = 1 << 20

// newGrownPool creates an empty pool and the given number of groups: the world and splits of it.
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

// allocate allocates blocks until the pool has the given number of segments.
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

// grow increases the number of segments to the given number, and registers them with every group.
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

// records lists the pool's segments with their blocks. The index is the segment's ordinal.
func (g *grownPool) records() []segmentRecord {
	var all []segmentRecord
	for s := range g.pool.Segments() {
		all = append(all, segmentRecord{address: s.Address, bytes: s.Bytes})
	}

	for _, b := range g.blocks {
		r := &all[b.Segment()]
		r.blocks = append(r.blocks, b)
	}

	return all
}
