package symmem

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/ledger"
)

// collective is a call of a group: what its caller asks for and, once prepare has run, how the
// backend does it. Programs make the same calls on the same buffers again and again, so each group
// keeps the latest ones.
type collective struct {
	send, recv Memory
	count      int64
	root, tag  int
	operation  driver.Operation
	dataType   DataType
	reduceOp   ReduceOp
	choice     PathChoice // chooses the path of this call alone, unless it is PathDefault
	site       uint32     // the place in the program, see Interop.At; not a part of what is asked
	arrived    func(source int)
	splits     *Splits
	norm       *NormArgs // on the heap; see normLike

	plan driver.Plan // nil until prepare has run
	// described describes the call of the plan.
	described *event.Call
	// revision is the group's revision that the plan was made for.
	revision uint64
	// frees is the result of freed when the buffers were last found alive, or unknownFrees.
	frees uint64 // atomic
}

// unknownFrees is more frees than there ever are.
const unknownFrees = math.MaxUint64

// planner resolves the calls of a group into plans and keeps them.
type planner struct {
	roster
	rt      *Runtime
	group   *Group // for the registration of pools
	comm    driver.Communicator
	life    *lifetime
	windows *windows
	router  *router
	site    atomic.Uint32 // the place of the latest call, or 0; see Interop.At
	plans   [planSlots]atomic.Pointer[collective]
}

func (pl *planner) init(g *Group) {
	pl.roster, pl.rt, pl.group, pl.comm, pl.life = g.roster, g.rt, g, g.comm, g.life
	pl.windows, pl.router = &g.windows, g.router
}

// latestSite returns the place of the group's latest call, or nothing if it is not known.
func (pl *planner) latestSite() string { return pl.rt.sites.named(pl.site.Load()) }

// planSlots is the number of plans that a group keeps, a power of two.
const planSlots = 256

// slot returns where the group keeps the plan of a call; weight is the address of a norm's weight.
func (c *collective) slot(weight uintptr) uint64 {
	h := uint64(c.send.Address())>>6 ^ uint64(c.recv.Address())>>8 ^ uint64(weight)>>5 ^
		uint64(c.count)<<2 ^ uint64(c.operation)
	return (h * 0x9e3779b97f4a7c15) >> 56 & (planSlots - 1)
}

// weight returns the address of a norm's weight, or 0.
func (c *collective) weight() uintptr {
	if c.norm == nil {
		return 0
	}
	return c.norm.Weight.Address()
}

// normLike returns arguments of a norm for a call to point at: those of a kept plan, if they are
// equal, so that a repeated call allocates nothing.
func normLike(p *collective, a *NormArgs) *NormArgs {
	if p != nil && p.norm != nil && *p.norm == *a {
		return p.norm
	}
	norm := *a
	return &norm
}

// kept returns the equal call whose plan the group keeps, or nil if there is none that is up to
// date. Which plans are kept depends on addresses, and so on the rank; what a call registers, and
// whether it is refused, must not.
func (pl *planner) kept(c *collective) *collective {
	p := pl.plans[c.slot(c.weight())].Load()
	if p == nil || p.revision != pl.windows.revision.Load() || !p.same(c) ||
		(c.splits != p.splits || c.norm != p.norm) && !p.sameExtras(c) {
		return nil
	}
	if frees := c.freed(); frees != atomic.LoadUint64(&p.frees) && !p.alive(frees) {
		return nil
	}
	return p
}

// same reports whether two calls are equal, if sameExtras reports it, too. Go inlines it.
func (c *collective) same(as *collective) bool {
	return c.send == as.send && c.recv == as.recv && c.count == as.count &&
		c.operation == as.operation && c.dataType == as.dataType && c.reduceOp == as.reduceOp &&
		c.root == as.root && c.tag == as.tag && c.choice == as.choice && as.arrived == nil
}

// sameExtras compares the fields that few operations have.
func (c *collective) sameExtras(as *collective) bool {
	return sameSplits(c.splits, as.splits) && c.norm == as.norm
}

// freed counts the frees in the pools of send and recv. While the count stays, neither was freed.
func (c *collective) freed() (frees uint64) {
	if c.send.pool != nil {
		frees = c.send.pool.frees.Load()
	}
	if c.recv.pool != nil {
		frees += c.recv.pool.frees.Load()
	}
	return frees
}

// alive reports whether no buffer of the call was freed, and remembers up to which frees.
func (c *collective) alive(frees uint64) bool {
	residual, weight := c.others()
	for _, m := range [...]Memory{c.send, c.recv, residual, weight} {
		if m.pool == nil {
			continue
		}
		if _, err := m.pool.blockOf(m); err != nil {
			return false
		}
	}
	if c.norm == nil { // freed does not count the frees of the other buffers of a norm
		atomic.StoreUint64(&c.frees, frees)
	}
	return true
}

// others returns the buffers of a norm besides send and recv.
func (c *collective) others() (residual, weight Memory) {
	if c.norm == nil {
		return Memory{}, Memory{}
	}
	return c.norm.Residual, c.norm.Weight
}

// check returns a copy of a call for prepare. It refuses a call that is invalid on every rank.
func (pl *planner) check(c *collective) (*collective, error) {
	p := new(collective)
	*p = *c
	p.frees = unknownFrees
	if c.splits != nil {
		p.splits = cloneSplits(c.splits)
	}
	call := p.call()
	if err := pl.validate(p, &call); err != nil {
		return nil, pl.refused(c, err)
	}
	return p, nil
}

// keepable reports whether the group may keep the plan, which keeps Go slices of it reachable.
func (c *collective) keepable() bool {
	if c.arrived != nil {
		return false
	}
	if c.splits != nil {
		return (c.send.extent|c.recv.extent)&ofHost == 0
	}
	return c.count == 0 || c.send.pool != nil || c.recv.pool != nil ||
		(c.send.extent|c.recv.extent)&ofHost == 0
}

// call describes the call for the backend, without windows, path and digest.
func (c *collective) call() driver.Call {
	call := driver.Call{
		Operation: c.operation, DataType: c.dataType, ReduceOp: c.reduceOp, Root: c.root,
		Count: c.count, Send: c.send.Address(), Recv: c.recv.Address(),
		Tag: c.tag, Arrived: c.arrived, Splits: c.splits,
	}
	if (c.send.extent|c.recv.extent)&ofHost != 0 {
		call.Keep = [2]unsafe.Pointer{c.send.start, c.recv.start}
	}
	if c.norm != nil {
		call.Norm = c.norm.norm()
	}
	return call
}

// prepare registers what a valid call on a stream needs, chooses its path and has the backend make
// the plan. If memory cannot be registered now, because a stream of some rank captures, the call
// takes a path that needs no windows, on all ranks.
func (pl *planner) prepare(ctx context.Context, c *collective, s *Stream) error {
	ctx = orBackground(ctx)
	if err := pl.life.cause(ctx); err != nil {
		return pl.refused(c, err)
	}
	residual, weight := c.others()
	for _, m := range [...]Memory{c.send, c.recv, residual, weight} {
		suspectPool{m.pool}.usedBy(&pl.roster)
	}
	registered, err := pl.register(ctx, c, s)
	if err != nil {
		return pl.refused(c, err)
	}
	if err := pl.alignWindows(ctx, c.call(), registered); err != nil {
		return pl.refused(c, err)
	}
	call := c.call()
	c.revision = pl.windows.revision.Load()
	at := pl.locations(&call)
	offer, why, err := pl.router.route(c.choice, &call, at.where)
	if err != nil {
		return pl.refused(c, err)
	}
	described := pl.describe(&call, &at, 0)
	word := digest(described)
	c.plan, err = offer.Take(call.Path, word)
	if err != nil {
		return fmt.Errorf("%w (%v)", pl.life.awaitCause(err), why)
	}
	c.described = submitted(&call, described, len(pl.ranks), word)
	// Otherwise the next call may register memory and take another path.
	if registered && c.keepable() && !c.hasPending(pl.windows) {
		pl.plans[c.slot(c.weight())].Store(c)
	}
	return nil
}

// hasPending reports whether a pool of the call has memory that the next call registers. It is
// called after the revision is read: memory that is mapped later changes that.
func (c *collective) hasPending(w *windows) bool {
	if !c.operation.UsesWindows() {
		return false
	}
	send, recv := w.memberOf(c.send.pool), w.memberOf(c.recv.pool)
	return send != nil && send.pending.Load() || recv != nil && recv.pending.Load()
}

// alignWindows realigns the pools in whose windows the buffers lie, also buffers that are named by
// their addresses alone. That is not possible while the call is captured.
func (pl *planner) alignWindows(ctx context.Context, call driver.Call, registered bool) error {
	at := pl.locations(&call)
	if at.send == nil {
		return nil
	}
	sendBytes, recvBytes := call.Spans(len(pl.ranks))
	for _, m := range [...]struct {
		pool    *Pool
		address uintptr
		bytes   int64
	}{{at.send.pool, call.Send, sendBytes}, {at.recv.pool, call.Recv, recvBytes}} {
		if !(suspectPool{m.pool}).mustAlign(&pl.roster, m.address, m.bytes) {
			continue
		}
		if !registered {
			return fmt.Errorf("a pool must be realigned after a fault, which a capture cannot do: call "+
				"Pool.Register before the capture: %w", ErrCapturing)
		}
		if err := cmp.Or(m.pool.Register(ctx, pl.group), context.Cause(ctx)); err != nil {
			return err // as in register
		}
	}
	return nil
}

func (pl *planner) refused(c *collective, err error) error {
	return fmt.Errorf("%v on group %s: %w", c.operation, pl.id, err)
}

// validate refuses what no rank could do: the call itself, and then its memory.
func (pl *planner) validate(c *collective, call *driver.Call) error {
	if err := call.Validate(len(pl.ranks), pl.rank); err != nil {
		return err
	}
	send, recv := call.Spans(len(pl.ranks))
	residual, weight := call.Norm.Spans()
	second, third := c.others()
	return errors.Join(
		pl.checkMemory("send", c.send, send, c.dataType),
		pl.checkMemory("receive", c.recv, recv, c.dataType),
		pl.checkMemory("residual", second, residual, c.dataType),
		pl.checkMemory("weight", third, weight, c.dataType))
}

func (pl *planner) checkMemory(what string, m Memory, bytes int64, t DataType) error {
	if bytes == 0 {
		return nil
	}
	if bytes > m.Bytes() {
		return fmt.Errorf("%s buffer of %d bytes: the call needs %d: %w",
			what, m.Bytes(), bytes, ErrOutOfRange)
	}
	if m.Address() == 0 {
		return invalid("%s buffer has no address", what)
	}
	if m.extent&ofHost != 0 && !pl.rt.device.Info().Addressable {
		return fmt.Errorf("%s buffer is a Go slice, which the device cannot reach: copy it to a "+
			"buffer with Stream.Copy: %w", what, ErrUnsupported)
	}
	if m.Address()%uintptr(t.Size()) != 0 {
		return invalid("%s buffer at %#x is not aligned to %v", what, m.Address(), t)
	}
	if m.pool == nil {
		return nil
	}
	if m.pool.rt != pl.rt {
		return fmt.Errorf("%s buffer of another runtime: %w", what, ErrForeign)
	}
	if _, err := m.pool.blockOf(m); err != nil {
		return fmt.Errorf("%s buffer: %w", what, err)
	}
	return nil
}

// register registers the pools of a call's buffers with the group, unless they are: its first
// collective on their memory. It reports whether they are registered then. Nothing is registered
// while the stream of the call captures, which it does on all ranks, or, by agreement, while
// another stream of some rank does.
func (pl *planner) register(
	ctx context.Context, c *collective, s *Stream,
) (registered bool, err error) {
	if !c.operation.UsesWindows() {
		return true, nil
	}
	if s.records() {
		return false, nil
	}
	for _, m := range [...]Memory{c.send, c.recv} {
		if !m.registersWith(pl.group) {
			continue
		}
		err := m.pool.registerInCall(ctx, pl.group)
		if errors.Is(err, ErrCapturing) {
			return false, nil
		}
		// A caller whose context has ended may have left the call, and its buffers.
		if err := cmp.Or(err, context.Cause(ctx)); err != nil {
			return false, err
		}
	}
	return true, nil
}

// registersWith reports whether a collective of a group on the memory first registers some of its
// pool with the group, or realigns the pool after a fault.
func (m Memory) registersWith(g *Group) bool {
	p := m.pool
	if p == nil {
		return false
	}
	from, member := int32(0), g.windows.memberOf(p)
	if member != nil && !member.pending.Load() || !g.calls.serves(p) {
		return false
	}
	if (suspectPool{p}).mustAlign(&g.roster, m.Address(), m.Bytes()) {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if member != nil {
		from = member.next
	}
	return slices.ContainsFunc(p.segments[from:], (*segment).registrable)
}

// locations holds the windows in which the buffers of a call lie. where is text for people: that
// they do, or why both are nil.
type locations struct {
	send, recv *windowEntry
	where      string
}

// locations looks up the windows of a call's buffers and sets them in the call.
func (pl *planner) locations(call *driver.Call) locations {
	table := pl.windows.table.Load()
	sendBytes, recvBytes := call.Spans(len(pl.ranks))
	send, inSend := table.find(call.Send, sendBytes)
	if call.Splits != nil && inSend && sendBytes > 0 {
		call.SendWindow = send.window
	}
	if !call.Operation.UsesWindows() || call.Count == 0 {
		return locations{where: "the operation works without windows"}
	}
	if !inSend {
		return locations{where: "the send buffer is in no window of the group"}
	}
	recv, ok := table.find(call.Recv, recvBytes)
	if !ok {
		return locations{where: "the receive buffer is in no window of the group"}
	}
	call.SendWindow, call.RecvWindow = send.window, recv.window
	return locations{send, recv, "both buffers lie in windows of the group"}
}

// describe collects what must be the same on all ranks: over windows also where the buffers lie. On
// the direct path a rank without windows has no places, so that it differs from ranks with windows.
// The two ends of a message may differ in operation, peer and place.
func (pl *planner) describe(call *driver.Call, at *locations, ticket uint64) *event.Call {
	c := call.Describe()
	c.Ticket = ticket
	switch {
	case call.Operation.PointToPoint():
		c.Operation, c.Root = "SendRecv", -1
	case call.Norm != nil:
		// The arguments of a norm go into the fields that exist.
		c.DataType = fmt.Sprintf("%s[%d]", c.DataType, call.Norm.Hidden)
		c.ReduceOp = fmt.Sprintf("%s, epsilon %g", c.ReduceOp, call.Norm.Epsilon)
	}
	if call.Path != driver.PathPlain && at.send != nil {
		pl.place(&c, call, at)
	}
	return &c
}

// place describes where the buffers of a call lie in windows.
func (pl *planner) place(c *event.Call, call *driver.Call, at *locations) {
	send, recv, sendAt, recvAt := at.send, at.recv, call.Send, call.Recv
	// In place, the smaller buffer is this rank's part of the larger one, which stands for both.
	switch {
	case !call.InPlace(pl.rank):
	case call.Operation == driver.AllGather:
		send, sendAt = recv, recvAt
	default:
		recv, recvAt = send, sendAt
	}
	c.SendPool, c.SendSegment, c.SendOffset = send.position(sendAt)
	c.RecvPool, c.RecvSegment, c.RecvOffset = recv.position(recvAt)
}

// submitted completes the description of a call for events. A message is described as this rank
// calls it.
func submitted(call *driver.Call, d *event.Call, ranks int, digest uint64) *event.Call {
	if call.Operation.PointToPoint() {
		*d = call.Describe()
	}
	send, recv := call.Spans(ranks)
	d.Bytes, d.Digest = max(send, recv), digest
	return d
}

// digest condenses a description into the word that ranks compare.
func digest(c *event.Call) uint64 {
	d := ledger.Empty
	for words := range slices.Chunk(event.AppendCall(nil, c), 16) {
		var two [16]byte
		copy(two[:], words)
		d = ledger.Mix(d, binary.LittleEndian.Uint64(two[:]), binary.LittleEndian.Uint64(two[8:]))
	}
	return d
}

// callOf describes the call in which this rank differs from others, or returns nil if a mismatch
// was not the cause. It looks up the windows again: the backend knows only its own.
func (pl *planner) callOf(cause error) *event.Call {
	var mismatch *driver.MismatchError
	if !errors.As(cause, &mismatch) {
		return nil
	}
	call, ticket := *mismatch.Call, mismatch.Number
	if mismatch.Launch {
		ticket = 0 // the call has no number that all ranks know
	}
	at := pl.locations(&call)
	return pl.describe(&call, &at, ticket)
}
