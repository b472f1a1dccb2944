package symmem

import (
	"cmp"
	"context"
	"fmt"

	"symmem/driver"
	"symmem/event"
)

// Interop is for bindings, and for programs that share streams, communicators or memory with
// another library. Other Go programs need at most Do.
//
// Objects that are passed as handles or addresses must stay alive as long as the method requires.
// Pools, groups and streams must belong to the same Runtime. An Interop may be copied and used
// concurrently.
type Interop struct {
	rt   *Runtime
	site uint32 // the call site of later calls, from At; 0 if there is none
}

// Close is Runtime.Close, but stops waiting for other ranks when the context ends, though not
// within the first second. If this rank serves the store, other ranks cannot create groups
// afterwards.
func (i Interop) Close(ctx context.Context) error { return i.rt.close(ctx) }

// Site returns a number for a location outside Go code, such as "model.py:120", for At. After
// 65,536 locations, it returns 0.
func (i Interop) Site(text string) uint32 { return i.rt.sites.number(text) }

// At returns an Interop that attributes its calls to a location, in errors about differing calls.
// site is a result of Site, or 0 for none.
func (i Interop) At(site uint32) Interop { return Interop{rt: i.rt, site: site} }

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

// Value calls the method of Group for the operation. ValueAny and ValueAll return 0 or 1.
// Operations that only compare return the value.
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
	default: // the other operations use c.Value
	}

	return g.values.combine(ctx, valueCall{
		operation: c.Operation, name: c.Name, value: value, site: i.site,
	})
}

// ValueCall contains the arguments of Interop.Value.
type ValueCall struct {
	Operation ValueOperation
	Name      string
	// Value is this rank's value. For ValueAny and ValueAll, 0 is false.
	Value int64
	// Float replaces Value for ValueAgreeFloat.
	Float float64
	// Text replaces Value for ValueAgreeString and ValueStep.
	Text string
}

// Note adds two numbers of the caller, which must not be negative, to a pool's history, so that
// ranks compare them.
func (i Interop) Note(p *Pool, kind, value int64) error {
	if p == nil || kind < 0 || value < 0 {
		return invalid("noting %d of kind %d: the pool is nil, or a number is negative", value, kind)
	}

	p.mu.Lock()
	if p.segments.refusing {
		return unlockAndRefuse(p)
	}

	defer p.events.unlock()
	p.ledger.Append(&event.Event{
		Kind: event.KindNote, Segment: -1, Size: value, Requested: kind,
	}, i.site)
	return nil
}

// Memory returns the memory at an address. In a live buffer, the result is like Buffer.Memory, but
// uses on other streams and in captures are not recorded, so the caller must keep the buffer alive
// until the work is complete. After Free, calls that use the memory return ErrFreed. Outside the
// open pools, the result belongs to no pool.
//
// Memory returns ErrFreed if the address belongs to a pool but to no live buffer, ErrOutOfRange if
// the range extends past the end of the buffer, and ErrInvalid if bytes is negative or too large.
func (i Interop) Memory(address uintptr, bytes int64) (Memory, error) {
	if bytes < 0 || bytes > maxExtentBytes {
		return Memory{}, invalid("memory of %d bytes at %#x: the size is negative or too large",
			bytes, address)
	}

	p := i.rt.registry.ranges.find(address)
	if p == nil || bytes == 0 {
		return memoryAt(address, bytes), nil
	}

	return p.addresses.memory(address, bytes)
}

// Buffer returns the live buffer that contains an address, ErrForeign outside pools, or ErrFreed
// outside live buffers.
func (i Interop) Buffer(address uintptr) (Buffer, error) {
	p := i.rt.registry.ranges.find(address)
	if p == nil {
		return Buffer{}, fmt.Errorf("memory at %#x: %w", address, ErrForeign)
	}

	return p.addresses.buffer(address)
}

// Retire returns the buffer that begins at an address, for callers that free it later. From then
// on, Memory and Buffer return ErrFreed for it. If no live buffer begins there, Retire returns
// ErrForeign or ErrDoubleFree.
func (i Interop) Retire(address uintptr) (Buffer, error) {
	p := i.rt.registry.ranges.find(address)
	if p == nil {
		return Buffer{}, fmt.Errorf("freeing %#x: %w", address, ErrForeign)
	}

	return p.addresses.findAndRemove(address)
}

// Live returns the number and the total size of the buffers that have been neither freed nor
// retired, of all pools (including closed ones) if p is nil.
func (i Interop) Live(p *Pool) (buffers int, bytes int64) {
	if p != nil {
		return p.addresses.countLive()
	}

	for _, r := range i.rt.registry.ranges.all() {
		poolBuffers, poolBytes := r.pool.addresses.countLive()
		buffers += poolBuffers
		bytes += poolBytes
	}

	return buffers, bytes
}

// IsSymmetric is Group.IsSymmetric for a range of addresses.
func (Interop) IsSymmetric(g *Group, address uintptr, bytes int64) bool {
	return g != nil && g.windows.contains(address, bytes)
}

// PeerAddresses is Buffer.PeerAddresses for a range of addresses on this rank.
func (Interop) PeerAddresses(g *Group, address uintptr, bytes int64) ([]uintptr, error) {
	return peerAddresses(g, address, bytes)
}

// WindowHandle returns NCCL's window, an ncclWindow_t, that contains a range of addresses on this
// rank, and the offset in it, for kernels that use NCCL's device API (ncclDevCommCreate). The
// window is valid as long as the addresses from Buffer.PeerAddresses. NCCL requires that all calls
// on the communicator, even those of symmem, come from one thread at a time, in the same order on
// all ranks. WindowHandle does not communicate. It returns ErrInvalid if the range is not
// registered with the group, and ErrUnsupported if NCCL has no window; groups with PathWindow have
// one.
func (Interop) WindowHandle(
	g *Group, address uintptr, bytes int64,
) (window, offset uintptr, err error) {
	return windowHandle(g, address, bytes)
}

// StopWord returns the address of a word of 32 bits that kernels of this rank can read, or 0 if the
// group has none. The word becomes nonzero when the group fails. Its address is valid until the
// group is closed.
func (Interop) StopWord(g *Group) uintptr {
	if g == nil {
		return 0
	}

	if inspector, ok := g.comm.(driver.Inspector); ok {
		return inspector.Inspect().StopWord
	}

	return 0
}

// Pending reports whether Pool.Register would register memory or realign the pool after a fault.
func (Interop) Pending(p *Pool, g *Group) bool {
	return g != nil && Memory{pool: p}.needsRegistration(g)
}

// Registers reports whether a collective would first register memory or realign a pool, and
// therefore wait for other ranks.
func (Interop) Registers(g *Group, op Operation, send, recv Memory, s *Stream) bool {
	if g == nil || !op.UsesWindows() {
		return false
	}

	if !send.needsRegistration(g) && !recv.needsRegistration(g) {
		return false
	}

	isInCapture := s != nil && s.inCapture() // collectives in captures do not register
	return !isInCapture
}

// Call contains the arguments of Interop.Do.
type Call struct {
	// Only reductions use Op.
	Operation Operation
	Type      DataType
	Op        ReduceOp
	// Factor is the factor of PremulSum: finite, not 0, and the same on all ranks. It is 0
	// otherwise.
	Factor float64
	// Root is the root or, for Send and Recv, the peer. For Recv, it may be AnySource.
	Root int
	Tag  int // for Send and Recv
	// Count is the number of elements, or 0 for operations with Splits.
	Count int64
	// Splits holds the additional arguments of AllToAllV, AllGatherV and ReduceScatterV.
	Splits *Splits
	// Arrived is called with the sender's group rank when the message of a Recv has arrived. It
	// must return quickly and must not call symmem, because the stream waits for it. If it panics,
	// the group fails.
	Arrived    func(source int)
	Send, Recv Memory
	// Norm replaces Type, Op, Count, Send and Recv in AllReduceRMSNorm and ReduceScatterRMSNorm.
	Norm *NormArgs
	// Route replaces Type, Count, Send and Recv in Dispatch and Combine.
	Route *RouteArgs
	// Wait makes Do wait until the stream is idle, and return the first error of its work. Unlike
	// Stream.Synchronize, it does not affect the history of pools, and the group's timeout limits
	// it, not the context. During a capture of the stream, Do returns ErrCapturing.
	Wait bool
	// More lists calls that run together with this one, in any order. Messages, norms, Dispatch,
	// Combine and nested lists are not permitted. Wait and Path of the first call apply to all.
	More []Call
	// Path must be the same on all ranks. PathDefault and PathAuto select the group's choice.
	Path PathChoice
}

// Do calls the method of Group for the operation.
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

	queueErr := c.queue(ctx, g, s, i.site)
	if queueErr != nil && g.comm.Cause() == nil { // the group has not failed
		return queueErr // nothing was queued
	}

	syncErr := s.queue.Synchronize(orBackground(ctx))
	deliverAll(i.rt)
	return cmp.Or(queueErr, awaitStreamCause(syncErr))
}

// queue queues the call, and the calls in More.
func (c *Call) queue(ctx context.Context, g *Group, s *Stream, site uint32) error {
	if len(c.More) > 0 {
		return c.queueAll(ctx, g, s, site)
	}

	if c.Norm != nil && c.Operation.HasNorm() {
		return runNorm(ctx, g, c.Operation, *c.Norm, s, c.Path, site, c.Wait)
	}

	isRoute := c.Operation == OpDispatch || c.Operation == OpCombine
	if c.Route != nil && isRoute {
		return runRoute(ctx, g, c.Operation, *c.Route, s, c.Path, site, c.Wait)
	}

	call := c.collective(g.rank, site)
	return g.run(ctx, s, &call)
}

// queueAll queues a list of calls: c and c.More.
func (c *Call) queueAll(ctx context.Context, g *Group, s *Stream, site uint32) error {
	calls, err := c.allCalls(g, site)
	if err != nil {
		return err
	}

	return queueList(ctx, g, s, calls)
}

// allCalls returns c and c.More. They get the path choice of c.
func (c *Call) allCalls(g *Group, site uint32) ([]*collective, error) {
	first := c.collective(g.rank, site)
	all := []*collective{&first}
	for i := range c.More {
		more := &c.More[i]
		next := more.collective(g.rank, site)
		if len(more.More) > 0 {
			return nil, invalid("%v on group %s: a list of calls contains a list", next.operation, g.id)
		}

		hasOtherChoice := next.choice > PathAuto && next.choice != first.choice
		if hasOtherChoice {
			return nil, invalid("%v on group %s: the call asks for the %v path, and the first "+
				"call of its list for %v: set Path in the first call only", next.operation, g.id,
				next.choice, first.choice)
		}

		next.choice = first.choice
		all = append(all, &next)
	}

	return all, nil
}

// collective converts the call, without More, Norm and Route. rank is this rank in the group.
func (c *Call) collective(rank int, site uint32) collective {
	count := c.Count
	if c.Splits != nil && count == 0 { // Splits determines the count
		count = c.Splits.CountOf(c.Operation, rank)
	}

	return collective{
		operation: c.Operation, dataType: c.Type, reduceOp: c.Op, root: c.Root, count: count,
		send: c.Send, recv: c.Recv, choice: c.Path, tag: c.Tag, splits: c.Splits, arrived: c.Arrived,
		site: site, wait: c.Wait, factor: c.Factor,
	}
}

// Observe adds an observer and returns a function that removes it.
func (i Interop) Observe(o Observer) (remove func()) { return i.rt.observers.add(&o) }
