package symmem

import (
	"context"
	"fmt"

	"symmem/event"
)

// Interop serves bindings for other languages, and programs that share streams, communicators or
// memory with another library of the same process. The C library and the Python package are built
// on it. A program in Go alone only needs Do, and only for arguments that the methods of Group do
// not take: a path for one call, and the sender of a message from AnySource.
//
// Ownership: objects named by a handle or an address stay their owner's. symmem never destroys
// them, and the owner keeps them alive for as long as the comment of the method requires. Pools,
// groups and streams passed as arguments belong to the same Runtime.
//
// It is a value that belongs to its Runtime, and is safe for concurrent use.
type Interop struct {
	rt   *Runtime
	site uint32 // see At
}

// Close is like Runtime.Close, but the end of the context also ends the wait for other ranks to
// leave, after a second at the earliest. It is for a rank that has failed or must not wait. If this
// rank served the store, the others cannot open groups afterwards.
func (i Interop) Close(ctx context.Context) error { return i.rt.close(ctx) }

// Site returns the number of a place in a program that is not Go's, such as "model.py:120", for At:
// the same text has the same number in this Runtime. Once 65,536 are known a new one is 0. It is
// the caller's part to ask for it only where call sites are wanted.
func (i Interop) Site(text string) uint32 { return i.rt.sites.number(text) }

// At returns an Interop that attributes its calls to a call site, a number that Site has returned;
// 0 is none. If ranks make different calls, the error has the call site of each.
func (i Interop) At(site uint32) Interop { return Interop{i.rt, site} }

// Alloc is Pool.AllocOn.
func (i Interop) Alloc(p *Pool, s *Stream, bytes int64) (Buffer, error) {
	return p.alloc(s, bytes, i.site)
}

// Reserve is Pool.ReserveOn.
func (i Interop) Reserve(
	ctx context.Context, p *Pool, s *Stream, bytes int64, g *Group,
) error {
	ctx = orBackground(ctx)
	return p.reserveFor(ctx, s, bytes, g, i.site)
}

// Value makes a call on a value of all ranks, as the method of Group for its operation does. It
// returns the result of ValueAny and ValueAll as 0 or 1, and the value itself where ranks only
// compare it.
func (i Interop) Value(ctx context.Context, g *Group, c ValueCall) (int64, error) {
	if g == nil || !c.Operation.known() {
		return 0, invalid("%v on value %q", c.Operation, c.Name)
	}
	value := c.Value
	switch c.Operation {
	case ValueStep:
		return 0, g.values.step(ctx, c.Text, i.site)
	case ValueAgreeString:
		return 0, g.values.agreeString(ctx, c.Name, c.Text, i.site)
	case ValueAny, ValueAll:
		value = truth(value != 0)
	case ValueAgreeFloat:
		value = floatBits(c.Float)
	default:
	}
	return g.values.combine(ctx, valueCall{
		operation: c.Operation, name: c.Name, value: value, site: i.site,
	})
}

// ValueCall is a call on a value of all ranks, for Interop.Value. The methods of Group define the
// operations.
type ValueCall struct {
	Operation ValueOperation
	// Name is that of the value; ValueStep has none.
	Name string
	// Value is this rank's value. ValueAny and ValueAll take 0 for false, anything else for true.
	Value int64
	// Float takes the place of Value for ValueAgreeFloat, and Text for ValueAgreeString and
	// ValueStep.
	Float float64
	Text  string
}

// Note adds an event to a pool's history that must be equal on the ranks of the domain, beyond
// those that the pool adds: two non-negative numbers whose meaning the caller defines. The next
// comparison that finds a difference names it, with its position. It does not wait.
func (i Interop) Note(p *Pool, kind, value int64) error {
	if p == nil || kind < 0 || value < 0 {
		return invalid("noting %d of kind %d", value, kind)
	}
	p.mu.Lock()
	defer poolEvents{p}.release()
	if err := p.usable(); err != nil {
		return err
	}
	p.ledger.Absorb(&event.Event{
		Kind: event.KindNote, Segment: -1, Size: value, Requested: kind,
	}, i.site)
	return nil
}

// Memory returns the memory at an address, for callers that know their tensors by address alone. An
// address in a live buffer of a pool, at its start or inside, gives memory of that buffer: a call
// registers it and checks it as Buffer.Memory. Any other address outside the open pools gives
// memory that is in no pool, such as memory of another library, or a buffer that was live when its
// pool was closed.
//
// The caller keeps the memory alive until the work on it is done, in either case: unlike with
// Buffer.Memory, no use on another stream and none in a capture is noted.
//
// A lookup is ordered with the Alloc and Free calls of other goroutines. Memory whose buffer is
// freed later is refused with ErrFreed by the calls that begin after that, also where the address
// belongs to another buffer by then.
//
// Errors: ErrFreed for an address of a pool that is in no live buffer, ErrOutOfRange for bytes that
// the buffer does not have, ErrInvalid for a negative or absurd length.
func (i Interop) Memory(address uintptr, bytes int64) (Memory, error) {
	if bytes < 0 || bytes > maxExtent {
		return Memory{}, invalid("memory of %d bytes at %#x", bytes, address)
	}
	if p := i.rt.made.arenas.find(address); p != nil && bytes > 0 {
		return addressedPool{p}.memory(address, bytes)
	}
	return foreignMemory(address, bytes), nil
}

// Buffer returns the live buffer that an address lies in, also of a closed pool. It returns
// ErrForeign for an address outside the pools, and ErrFreed for one of a pool that is in no live
// buffer.
func (i Interop) Buffer(address uintptr) (Buffer, error) {
	p := i.rt.made.arenas.find(address)
	if p == nil {
		return Buffer{}, fmt.Errorf("memory at %#x: %w", address, ErrForeign)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b, ok := addressedPool{p}.index().find(address)
	if !ok {
		return Buffer{}, errFreedAt(address)
	}
	return b, nil
}

// Retire takes the buffer that begins at an address out of the lookups by address and returns it,
// for a caller that defers the Free, such as to free in an order that all ranks have in common.
// Until then the memory serves no other allocation, while Memory and Buffer return ErrFreed. It
// returns ErrForeign for an address outside the pools, and ErrDoubleFree where no buffer begins
// that was neither freed nor retired.
func (i Interop) Retire(address uintptr) (Buffer, error) {
	p := i.rt.made.arenas.find(address)
	if p == nil {
		return Buffer{}, fmt.Errorf("freeing %#x: %w", address, ErrForeign)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	x := addressedPool{p}.index()
	b, ok := x.find(address)
	if !ok || b.Address() != address {
		return Buffer{}, fmt.Errorf("freeing %#x: %w", address, ErrDoubleFree)
	}
	x.remove(b)
	return b, nil
}

// Live counts the buffers of a pool that were neither freed nor retired, and their bytes. Without a
// pool it counts those of all pools, closed ones included.
func (i Interop) Live(p *Pool) (buffers int, bytes int64) {
	if p != nil {
		return addressedPool{p}.live()
	}
	for _, a := range i.rt.made.arenas.all() {
		n, size := addressedPool{a.pool}.live()
		buffers, bytes = buffers+n, bytes+size
	}
	return buffers, bytes
}

// IsSymmetric is Group.IsSymmetric for a range of addresses.
func (Interop) IsSymmetric(g *Group, address uintptr, bytes int64) bool {
	return g != nil && g.windows.hold(address, bytes)
}

// Pending reports whether Pool.Register would register memory with a group, or realign the pool
// after a fault. It asks no other rank.
func (Interop) Pending(p *Pool, g *Group) bool {
	return g != nil && Memory{pool: p}.registersWith(g)
}

// Registers reports whether a collective on a stream would first do what Pool.Register does, and so
// wait for the other ranks of the group. It asks none of them.
func (Interop) Registers(g *Group, op Operation, send, recv Memory, s *Stream) bool {
	return g != nil && op.UsesWindows() &&
		(send.registersWith(g) || recv.registersWith(g)) && (s == nil || !s.records())
}

// Call is a collective as a value, for Interop.Do. The methods of Group define the
// operations.
type Call struct {
	// Operation, Type and Op select the collective. Op is used by reductions only.
	Operation Operation
	Type      DataType
	Op        ReduceOp
	// Root is the root, or the peer of Send and Recv, AnySource included.
	Root int
	// Tag is that of Send and Recv.
	Tag int
	// Count is in elements; 0 for AllToAllV.
	Count int64
	// Splits holds the additional arguments of AllToAllV.
	Splits *Splits
	// Arrived, if set, is called when a Recv has its message, with the rank of the group that sent
	// it, while the stream waits: it returns soon and does not call into symmem. A panic in it fails
	// the group.
	Arrived func(source int)
	// Send and Recv are this rank's buffers.
	Send, Recv Memory
	// Norm replaces Type, Op, Count, Send and Recv in AllReduceRMSNorm.
	Norm *NormArgs
	// Path chooses the path of this call: PathPlain, PathWindow or PathDirect. With any other value
	// the group's choice applies. It is the same on all ranks.
	Path PathChoice
}

// Do queues a collective of a group, as the method of Group for its operation does.
func (i Interop) Do(ctx context.Context, g *Group, c Call, s *Stream) error {
	if g == nil {
		return invalid("%v on no group", c.Operation)
	}
	if c.Path < PathDefault || c.Path > PathDirect {
		return invalid("%v on group %s: path choice %d", c.Operation, g.id, c.Path)
	}
	if c.Path == PathAuto {
		c.Path = PathDefault
	}
	if c.Norm != nil && c.Operation == OpAllReduceRMSNorm {
		return g.normalize(ctx, *c.Norm, s, c.Path, i.site)
	}
	return g.run(ctx, s, &collective{
		operation: c.Operation, dataType: c.Type, reduceOp: c.Op, root: c.Root, count: c.Count,
		send: c.Send, recv: c.Recv, choice: c.Path, tag: c.Tag, splits: c.Splits, arrived: c.Arrived,
		site: i.site,
	})
}
