package symmem

import (
	"context"
	"fmt"
	"runtime"
	"unsafe"

	"symmem/driver"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
)

// Interop is what bindings for other languages need, and programs that share streams, communicators
// or memory with another library of the same process. The C library and the Python package are made
// of it. A program in Go alone needs of it only Do, and only for what the methods of Group do not
// take: a path for one call, and who sent a message from AnySource.
//
// Ownership: what a handle or an address names stays its owner's. symmem never destroys it, and the
// owner keeps it alive as long as the method that took it says. Pools, groups and streams that are
// arguments are those of the same Runtime.
//
// It is a value that belongs to its Runtime, and is safe for concurrent use. The zero Interop has
// Memory alone.
type Interop struct{ rt *Runtime }

// Site is a place in a program that is not Go's, such as a line of Python: see Interop.Site. 0 is
// none.
type Site uint32

// sites are the names of Sites.
type sites struct {
	mu    ranked.Mutex[sitesMu]
	names *ledger.Sites // made at the first use; guarded by mu
}

// Site returns the number of a place, such as "model.py:120": the same text has the same number in
// this Runtime. Once 65,536 are known a new one is 0. It is the caller's part to ask for it only
// where call sites are wanted.
func (i Interop) Site(text string) Site { return i.rt.sites.number(text) }

func (all *sites) number(text string) Site {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.names == nil {
		all.names = ledger.NewSites()
	}
	return Site(all.names.Intern(0, text))
}

// named returns the text of a Site.
func (all *sites) named(s Site) string {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.names.At(uint32(s))
}

// text writes a call site: a program counter or a Site.
func (all *sites) text(site uintptr) string {
	if site < ledger.MaxSites {
		return all.named(Site(site))
	}
	frame, _ := runtime.CallersFrames([]uintptr{site}).Next()
	return fmt.Sprintf("%s:%d", frame.File, frame.Line)
}

// Alloc is Pool.AllocOn with the place for which it is done, for error messages.
func (i Interop) Alloc(p *Pool, s *Stream, bytes int64, at Site) (Buffer, error) {
	// No code of Go's lies below MaxSites, so numbers of Sites and program counters share a table.
	return p.alloc(s, bytes, uintptr(at))
}

// Reserve is Pool.ReserveOn with the place for which it is done, for error messages.
func (i Interop) Reserve(
	ctx context.Context, p *Pool, s *Stream, bytes int64, g *Group, at Site,
) error {
	return p.reserveFor(ctx, s, bytes, g, uintptr(at))
}

// Value is Group.Agree, or one of its kin, with the place for which it is done. Any and All take 0
// for false and anything else for true, and return 0 or 1. Agree returns the value.
func (i Interop) Value(
	ctx context.Context, g *Group, o ValueOperation, name string, value int64, at Site,
) (int64, error) {
	if !o.known() || o == valueStep {
		return 0, invalid("operation %d on value %q", o, name)
	}
	if o == ValueAny || o == ValueAll {
		value = truth(value != 0)
	}
	return g.values.combine(ctx, valueCall{
		operation: o, name: name, value: value, site: uintptr(at),
	})
}

// Step is Group.Step with the place for which it is done.
func (i Interop) Step(ctx context.Context, g *Group, what string, at Site) error {
	return g.values.step(ctx, what, at)
}

// Note puts something into a pool's history that the ranks of the domain must have alike, beyond
// what the pool does itself: two numbers, not negative, that mean what the caller wants. The next
// comparison that finds a difference names it, with its place. It waits for nobody.
func (i Interop) Note(p *Pool, kind, value int64, at Site) error {
	if kind < 0 || value < 0 {
		return invalid("noting %d of kind %d", value, kind)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("pool: %w", ErrClosed)
	}
	p.ledger.Absorb(&ledger.Event{
		Kind: ledger.KindNote, Segment: -1, Size: value, Requested: kind, Site: p.site(uintptr(at)),
	})
	return nil
}

// Memory is memory that symmem did not hand out, by its device address. The caller keeps it alive
// until the work is done. A length that is negative or absurd makes empty memory.
func (i Interop) Memory(address uintptr, bytes int64) Memory {
	if bytes < 0 || bytes > maxExtent {
		bytes = 0
	}
	start := *(*unsafe.Pointer)(unsafe.Pointer(&address))
	return Memory{start: start, extent: newExtent(bytes, 0)}
}

// IsSymmetric is Group.IsSymmetric for a range of addresses.
func (Interop) IsSymmetric(g *Group, address uintptr, bytes int64) bool {
	return g.holdsWindow(address, bytes)
}

// Call is a collective as a value, for Interop.Do. The methods of Group say what the operations
// mean.
type Call struct {
	// Operation, Type and Op say what to do; Op matters for reductions alone.
	Operation Operation
	Type      DataType
	Op        ReduceOp
	// Root is the root, or the peer of Send and Recv, AnySource included.
	Root int
	// Tag is that of Send and Recv.
	Tag int
	// Count is in elements; 0 for AllToAllV.
	Count int64
	// Splits is what AllToAllV has in addition.
	Splits *Splits
	// Arrived, if set, is called when a Recv has its message, with the rank of the group that sent
	// it. It runs on the way of the stream's work: it returns soon and does not call into symmem.
	Arrived func(source int)
	// Send and Recv are this rank's buffers.
	Send, Recv Memory
	// At is the place for which the call is made. Where ranks call different collectives the error
	// has the place of the latest call of each.
	At Site
	// Path is who chooses the path of this call alone: PathPlain, PathWindow or PathDirect; else
	// the group's choice stands. It is the same on all ranks.
	Path PathChoice
}

// Do queues a collective of a group, as the method of Group for its operation does.
func (i Interop) Do(ctx context.Context, g *Group, c Call, s *Stream) error {
	if c.Path < PathDefault || c.Path > PathDirect {
		return invalid("%v on group %s: path choice %d", c.Operation, g.id, c.Path)
	}
	if c.Path == PathAuto {
		c.Path = PathDefault
	}
	if c.At != 0 {
		g.site.Store(uint32(c.At))
	}
	return g.run(ctx, s, &request{
		operation: c.Operation, dataType: c.Type, reduceOp: c.Op, root: c.Root, count: c.Count,
		send: c.Send, recv: c.Recv, choice: c.Path,
	}, &extras{tag: c.Tag, splits: c.Splits, arrived: c.Arrived})
}

// Ordinal is the number of this rank's device among those that the process sees, or -1 where
// devices have no numbers, as on the host.
func (i Interop) Ordinal() int {
	if numbered, ok := i.rt.device.(driver.Numbered); ok {
		return numbered.Ordinal()
	}
	return -1
}
