package symmem

import (
	"cmp"
	"context"
	"fmt"

	"symmem/event"
)

// Interop serves bindings for other languages, and programs that share streams, communicators or
// memory with another library. Programs written only in Go need at most Do.
//
// The owner of an object that is passed as a handle or an address must keep it alive as long as the
// method requires. Pools, groups and streams passed as arguments must belong to the same Runtime.
// An Interop may be copied and used concurrently.
type Interop struct {
	rt   *Runtime
	site uint32 // see At
}

// Close is like Runtime.Close, but stops waiting for other ranks when the context ends, though not
// within the first second. If this rank serves the store, the other ranks cannot create groups
// afterwards.
func (i Interop) Close(ctx context.Context) error { return i.rt.close(ctx) }

// Site returns a number, to be passed to At, for a location that is not in Go code, such as
// "model.py:120". The same text always has the same number. After 65,536 locations, further ones
// have the number 0.
func (i Interop) Site(text string) uint32 { return i.rt.sites.number(text) }

// At returns an Interop that attributes its calls to a call site, which appears in errors about
// differing calls. site is a number that Site has returned, or 0 for none.
func (i Interop) At(site uint32) Interop { return Interop{i.rt, site} }

// Alloc is like Pool.AllocOn.
func (i Interop) Alloc(p *Pool, s *Stream, bytes int64) (Buffer, error) {
	return p.alloc(s, bytes, i.site)
}

// Reserve is like Pool.ReserveOn.
func (i Interop) Reserve(
	ctx context.Context, p *Pool, s *Stream, bytes int64, g *Group,
) error {
	ctx = orBackground(ctx)
	return p.reserveFor(ctx, s, bytes, g, i.site)
}

// Value is like the method of Group for the operation. For ValueAny and ValueAll, the result is 0
// or 1. For operations that only compare, the result is the value.
func (i Interop) Value(ctx context.Context, g *Group, c ValueCall) (int64, error) {
	if g == nil || !c.Operation.isValid() {
		return 0, invalid("%v on value %q: the group is nil, or the operation is unknown",
			c.Operation, c.Name)
	}
	value := c.Value
	switch c.Operation {
	case ValueStep:
		return 0, g.values.step(ctx, c.Text, i.site)
	case ValueAgreeString:
		return 0, g.values.agreeString(ctx, c.Name, c.Text, i.site)
	case ValueAny, ValueAll:
		value = boolToInt(value != 0)
	case ValueAgreeFloat:
		value = floatBits(c.Float)
	default:
	}
	return g.values.combine(ctx, valueCall{
		operation: c.Operation, name: c.Name, value: value, site: i.site,
	})
}

// ValueCall contains the arguments of Interop.Value. The methods of Group define the operations.
type ValueCall struct {
	Operation ValueOperation
	Name      string
	// Value is this rank's value. For ValueAny and ValueAll, 0 is false and any other value true.
	Value int64
	// Float replaces Value for ValueAgreeFloat.
	Float float64
	// Text replaces Value for ValueAgreeString and ValueStep.
	Text string
}

// Note adds an event with a kind and a value to a pool's history. The caller defines the meaning of
// these two numbers, which must not be negative. Ranks compare them like other events.
func (i Interop) Note(p *Pool, kind, value int64) error {
	if p == nil || kind < 0 || value < 0 {
		return invalid("noting %d of kind %d: the pool is nil, or a number is negative", value, kind)
	}
	p.mu.Lock()
	if p.segments.refusing {
		return unlockAndRefuse(p)
	}
	defer p.events.release()
	p.ledger.Append(&event.Event{
		Kind: event.KindNote, Segment: -1, Size: value, Requested: kind,
	}, i.site)
	return nil
}

// Memory returns the memory at an address. If the address lies in a live buffer of a pool, the
// result can be used like Buffer.Memory, but uses on other streams and in captures are not
// recorded. The caller must therefore keep the buffer alive until the work on it is complete. Once
// the buffer has been freed, calls that use the memory return ErrFreed. If the address lies outside
// the open pools, the result belongs to no pool.
//
// Memory returns ErrFreed if the address belongs to a pool but to no live buffer, ErrOutOfRange if
// the range extends past the end of the buffer, and ErrInvalid if bytes is negative or too large.
func (i Interop) Memory(address uintptr, bytes int64) (Memory, error) {
	if bytes < 0 || bytes > maxExtentBytes {
		return Memory{}, invalid("memory of %d bytes at %#x: the size is negative or too large",
			bytes, address)
	}
	if p := i.rt.registry.ranges.find(address); p != nil && bytes > 0 {
		return p.addresses.memory(address, bytes)
	}
	return memoryAt(address, bytes), nil
}

// Buffer returns the live buffer that contains an address, even if its pool is closed. It returns
// ErrForeign if the address belongs to no pool, and ErrFreed if it belongs to no live buffer.
func (i Interop) Buffer(address uintptr) (Buffer, error) {
	p := i.rt.registry.ranges.find(address)
	if p == nil {
		return Buffer{}, fmt.Errorf("memory at %#x: %w", address, ErrForeign)
	}
	return p.addresses.buffer(address)
}

// Retire returns the buffer that begins at an address, for callers that free it later. From then
// on, Memory and Buffer return ErrFreed for its addresses, but its memory is not reused until the
// caller frees it. Retire returns ErrForeign if the address belongs to no pool, and ErrDoubleFree
// if no buffer begins there or if the buffer has been freed or retired before.
func (i Interop) Retire(address uintptr) (Buffer, error) {
	p := i.rt.registry.ranges.find(address)
	if p == nil {
		return Buffer{}, fmt.Errorf("freeing %#x: %w", address, ErrForeign)
	}
	return p.addresses.findAndRemove(address)
}

// Live returns the number and the total size of a pool's buffers that have been neither freed nor
// retired. If p is nil, Live counts the buffers of all pools, including closed ones.
func (i Interop) Live(p *Pool) (buffers int, bytes int64) {
	if p != nil {
		return p.addresses.countLive()
	}
	for _, a := range i.rt.registry.ranges.all() {
		n, size := a.pool.addresses.countLive()
		buffers, bytes = buffers+n, bytes+size
	}
	return buffers, bytes
}

// IsSymmetric is like Group.IsSymmetric for a range of addresses.
func (Interop) IsSymmetric(g *Group, address uintptr, bytes int64) bool {
	return g != nil && g.windows.contains(address, bytes)
}

// PeerAddresses is like Buffer.PeerAddresses, for a range of addresses on this rank.
func (Interop) PeerAddresses(g *Group, address uintptr, bytes int64) ([]uintptr, error) {
	return peerAddresses(g, address, bytes)
}

// WindowHandle returns NCCL's window, an ncclWindow_t, that contains a range of addresses on this
// rank, and the offset of the range in the window. With Group.Handle it serves kernels that use
// NCCL's device API (ncclDevCommCreate). The window becomes invalid when addresses from
// Buffer.PeerAddresses do. NCCL requires that all calls on the communicator, including those of
// symmem, come from one thread at a time, in the same order on all ranks.
//
// WindowHandle does not communicate. It returns ErrInvalid if the range is not registered with the
// group, and ErrUnsupported, with the reason, if NCCL has no window: only groups whose path is
// PathWindow, or whose tuning table uses that path, are certain to register windows with NCCL.
func (Interop) WindowHandle(
	g *Group, address uintptr, bytes int64,
) (window, offset uintptr, err error) {
	return windowHandle(g, address, bytes)
}

// Pending reports whether Pool.Register would register memory or realign the pool after a fault. It
// does not communicate.
func (Interop) Pending(p *Pool, g *Group) bool {
	return g != nil && Memory{pool: p}.registersWith(g)
}

// Registers reports whether a collective would first register memory or realign a pool, and
// therefore wait for other ranks. Registers itself does not communicate.
func (Interop) Registers(g *Group, op Operation, send, recv Memory, s *Stream) bool {
	return g != nil && op.UsesWindows() &&
		(send.registersWith(g) || recv.registersWith(g)) && (s == nil || !s.inCapture())
}

// Call contains the arguments of Interop.Do. The methods of Group define the operations.
type Call struct {
	// Only reductions use Op.
	Operation Operation
	Type      DataType
	Op        ReduceOp
	// Factor is the factor of PremulSum, which must be finite, not 0, and the same on all ranks.
	// For other reductions, it must be 0.
	Factor float64
	// Root is the root or, for Send and Recv, the peer. For Recv, it may be AnySource.
	Root int
	Tag  int // for Send and Recv
	// Count is the number of elements, or 0 for operations with Splits.
	Count int64
	// Splits holds the additional arguments of AllToAllV, AllGatherV and ReduceScatterV.
	Splits *Splits
	// Arrived, if set, is called with the sender's group rank when the message of a Recv has
	// arrived. It must return quickly and must not call symmem, because the stream waits for it. A
	// panic in Arrived makes the group fail.
	Arrived    func(source int)
	Send, Recv Memory
	// Norm replaces Type, Op, Count, Send and Recv in AllReduceRMSNorm.
	Norm *NormArgs
	// Wait makes Do wait until the stream is idle, and return the first error of the stream's work.
	// Unlike Stream.Synchronize, this does not affect the history of pools. The group's timeout
	// limits the wait, but the context does not. While the stream is being captured, Do returns
	// ErrCapturing.
	Wait bool
	// More lists calls that run together with this one, as one call, in any order. Messages,
	// AllReduceRMSNorm and nested lists are not permitted. Wait and Path of the first call apply to
	// all.
	More []Call
	// Path must be the same on all ranks. With PathDefault or PathAuto, the group's choice applies.
	Path PathChoice
}

// Do queues a collective of a group, like the method of Group for its operation.
func (i Interop) Do(ctx context.Context, g *Group, c Call, s *Stream) error {
	if g == nil {
		return invalid("%v on a nil group", c.Operation)
	}
	if c.Path < PathDefault || c.Path > PathTwoLevel {
		return invalid("%v on group %s: unknown path choice %d", c.Operation, g.id, c.Path)
	}
	if c.Path == PathAuto {
		c.Path = PathDefault
	}
	if !c.Wait {
		return c.queue(ctx, g, s, i.site)
	}
	if s == nil {
		s = i.rt.stream
	}
	if s.inCapture() {
		return fmt.Errorf("%v on group %s: waiting for it: %w", c.Operation, g.id, ErrCapturing)
	}
	err := c.queue(ctx, g, s, i.site)
	if err != nil && g.comm.Cause() == nil {
		return err // nothing was queued
	}
	syncErr := s.queue.Synchronize(orBackground(ctx))
	deliverAll(i.rt)
	return cmp.Or(err, awaitStreamCause(syncErr))
}

func (c *Call) queue(ctx context.Context, g *Group, s *Stream, site uint32) error {
	if len(c.More) > 0 {
		return c.queueAll(ctx, g, s, site)
	}
	if c.Norm != nil && c.Operation == OpAllReduceRMSNorm {
		return g.normalize(ctx, *c.Norm, s, c.Path, site, c.Wait)
	}
	call := c.collective(g.rank, site)
	return g.run(ctx, s, &call)
}

func (c *Call) queueAll(ctx context.Context, g *Group, s *Stream, site uint32) error {
	list, err := c.list(g, site)
	if err != nil {
		return err
	}
	return queueList(ctx, g, s, list)
}

func (c *Call) list(g *Group, site uint32) ([]*collective, error) {
	first := c.collective(g.rank, site)
	list := []*collective{&first}
	for i := range c.More {
		next := c.More[i].collective(g.rank, site)
		switch {
		case len(c.More[i].More) > 0:
			return nil, invalid("%v on group %s: a list of calls contains a list", next.operation, g.id)
		case next.choice > PathAuto && next.choice != first.choice:
			return nil, invalid("%v on group %s: the call asks for the %v path, and the first call of its "+
				"list for %v: set Path in the first call only", next.operation, g.id, next.choice,
				first.choice)
		}
		next.choice = first.choice
		list = append(list, &next)
	}
	return list, nil
}

func (c *Call) collective(rank int, site uint32) collective {
	count := c.Count
	if c.Splits != nil && count == 0 {
		count = c.Splits.CountOf(c.Operation, rank)
	}
	return collective{
		operation: c.Operation, dataType: c.Type, reduceOp: c.Op, root: c.Root, count: count,
		send: c.Send, recv: c.Recv, choice: c.Path, tag: c.Tag, splits: c.Splits, arrived: c.Arrived,
		site: site, wait: c.Wait, factor: c.Factor,
	}
}

// Observe adds an observer and returns a function that removes it. Pool.Segments lists the segments
// that already exist.
func (i Interop) Observe(o Observer) (remove func()) { return i.rt.observers.add(&o) }
