package symmem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/agreement"
	"symmem/internal/ledger"
)

// request is what a caller asks of any collective. It is small: each call makes one.
type request struct {
	operation  driver.Operation
	dataType   DataType
	reduceOp   ReduceOp
	root       int
	count      int64
	send, recv Memory
	// choice is who chooses the path of this call alone; PathDefault leaves it to the group.
	choice PathChoice
}

// extras is what messages, norms and uneven exchanges have in addition; others have noExtras.
type extras struct {
	// tag is that of a message, arrived what is called when a Recv has one.
	tag     int
	arrived func(source int)
	splits  *Splits
	norm    driver.Norm
	// others are the buffers of a norm besides send and recv: its residual and its weight.
	others [2]Memory
	// site is the place that makes the call, see Interop.At. Calls of several places are the same.
	site uint32
}

// noExtras is shared by all calls that have no extras.
var noExtras = &extras{}

// planner works out what a call of its group does: whether it is right, in which windows its memory
// lies, what is registered first, and which path it takes. It holds nothing but the group.
type planner struct{ *Group }

// preparedPlan is a request and what prepare has worked out for it. Engines make the same calls on
// the same buffers again and again, so each group keeps the latest plans; a change of its windows
// makes them stale.
type preparedPlan struct {
	request
	extras
	revision uint64
	plan     driver.Plan
	// more reports whether the call has other buffers besides send and recv.
	more bool
	// members are those of the group in the buffers' pools, or nil: what they have not registered
	// is due before the call. A pool that the group joins later makes the plan stale.
	members [2]*membership
	// sendFrees and recvFrees are the counts of frees in the buffers' pools when the buffers were
	// last found alive. While they stand nothing was freed, so nothing needs to be looked up.
	sendFrees, recvFrees atomic.Uint64
	otherFrees           [2]atomic.Uint64
}

// planSlots is the number of plans that a group keeps, a power of two.
const planSlots = 256

// same reports whether a plan answers a request, if sameExtras does, too. Go inlines it.
func (p *preparedPlan) same(r *request, revision uint64) bool {
	q := &p.request
	return p.revision == revision && q.send == r.send && q.recv == r.recv && q.count == r.count &&
		q.operation == r.operation && q.dataType == r.dataType && q.reduceOp == r.reduceOp &&
		q.root == r.root && q.choice == r.choice
}

// sameExtras is same of what few operations have.
func (p *preparedPlan) sameExtras(e *extras) bool {
	q := &p.extras
	return q.tag == e.tag && e.arrived == nil && sameSplits(q.splits, e.splits) &&
		q.norm == e.norm && q.others == e.others
}

// hasPending reports whether memory of the buffers' pools waits to be registered. It takes no lock.
func (p *preparedPlan) hasPending() bool {
	send, recv := p.members[0], p.members[1]
	return send != nil && send.pending.Load() || recv != send && recv != nil && recv.pending.Load()
}

// fresh reports whether nothing was freed in the pools of the buffers, so that alive has nothing to
// do. Calls with other buffers are never fresh.
func (p *preparedPlan) fresh() bool {
	send, recv := p.send.pool, p.recv.pool
	return !p.more &&
		(send == nil || send.frees.Load() == p.sendFrees.Load()) &&
		(recv == nil || recv.frees.Load() == p.recvFrees.Load())
}

// alive refuses buffers that were freed since the plan was made. A new plan would refuse them, and
// which plans are kept depends on the rank.
func (p *preparedPlan) alive() error {
	err := errors.Join(p.send.stillAlive(&p.sendFrees), p.recv.stillAlive(&p.recvFrees),
		p.others[0].stillAlive(&p.otherFrees[0]), p.others[1].stillAlive(&p.otherFrees[1]))
	if err != nil {
		return fmt.Errorf("%v: %w", p.operation, err)
	}
	return nil
}

// stillAlive looks a buffer up if its pool has seen a free since the count.
func (m Memory) stillAlive(frees *atomic.Uint64) error {
	if m.pool == nil {
		return nil
	}
	now := m.pool.frees.Load()
	if now == frees.Load() {
		return nil
	}
	_, err := m.pool.blockOf(m)
	if err == nil {
		frees.Store(now)
	}
	return err
}

func (r *request) slot(e *extras) uint64 {
	h := uint64(r.send.Address())>>6 ^ uint64(r.recv.Address())>>8 ^
		uint64(r.count)<<2 ^ uint64(r.operation)
	if e.norm.Weight != 0 {
		h ^= uint64(e.norm.Weight) >> 5
	}
	return (h * 0x9e3779b97f4a7c15) >> 56 & (planSlots - 1)
}

// valid returns the cached plan of a request, or a new one for prepare to complete. It refuses
// requests that are invalid on every rank.
func (g planner) valid(r *request, e *extras) (*preparedPlan, error) {
	// Which plans are kept depends on addresses, and so on the rank; what is registered must not.
	if p := g.plans[r.slot(e)].Load(); p != nil && p.same(r, g.revision.Load()) &&
		(r.operation <= driver.AllToAll || p.sameExtras(e)) && !p.hasPending() {
		if p.fresh() {
			return p, nil
		}
		return p, p.alive()
	}
	p := &preparedPlan{request: *r, extras: *e}
	if p.splits != nil {
		p.splits = cloneSplits(p.splits)
	}
	call := p.call()
	if err := g.check(p, &call); err != nil {
		return nil, g.refused(r, err)
	}
	return p, nil
}

// keepable reports whether the plan may be kept: it would keep a Go slice reachable.
func (p *preparedPlan) keepable() bool {
	if p.arrived != nil {
		return false
	}
	if p.splits != nil {
		return (p.send.extent|p.recv.extent)&ofHost == 0
	}
	return p.count == 0 || p.send.pool != nil || p.recv.pool != nil ||
		(p.send.extent|p.recv.extent)&ofHost == 0
}

// call is what the backend is told of it, but for windows, path and digest.
func (p *preparedPlan) call() driver.Call {
	call := driver.Call{
		Operation: p.operation, DataType: p.dataType, ReduceOp: p.reduceOp, Root: p.root,
		Count: p.count, Send: p.send.Address(), Recv: p.recv.Address(),
		Tag: p.tag, Arrived: p.arrived, Splits: p.splits,
	}
	if (p.send.extent|p.recv.extent)&ofHost != 0 {
		call.Keep = [2]unsafe.Pointer{p.send.start, p.recv.start}
	}
	if p.norm != (driver.Norm{}) {
		norm := p.norm
		call.Norm = &norm
	}
	return call
}

// prepare registers what a valid request on a stream needs, chooses its path and has the backend
// make the plan. Memory that cannot be registered now, since a stream of some rank captures, takes
// a path that needs no windows, on all ranks alike.
func (g planner) prepare(ctx context.Context, p *preparedPlan, s *Stream) error {
	ctx = orBackground(ctx)
	if err := g.Err(); err != nil {
		return g.refused(&p.request, err)
	}
	for _, m := range [...]Memory{p.send, p.recv, p.others[0], p.others[1]} {
		suspectPool{m.pool}.usedBy(g.Group)
	}
	registered, err := g.register(ctx, p, s)
	if err != nil {
		return g.refused(&p.request, err)
	}
	if err := g.alignWindows(ctx, p.call(), registered); err != nil {
		return g.refused(&p.request, err)
	}
	call := p.call()
	p.revision, p.more = g.revision.Load(), call.Norm != nil
	at := g.locations(&call)
	offer, why, err := g.route(p.choice, &call, at.where)
	if err != nil {
		return g.refused(&p.request, err)
	}
	p.plan, err = offer.Take(call.Path, digest(g.describe(&call, &at, 0)))
	if err != nil {
		return fmt.Errorf("%w (%v)", g.awaitCause(err), why)
	}
	if p.operation.UsesWindows() {
		p.members = [2]*membership{g.memberOf(p.send.pool), g.memberOf(p.recv.pool)}
	}
	// The next call may register memory for which this one takes a path without windows.
	if registered && p.keepable() {
		g.plans[p.slot(&p.extras)].Store(p)
	}
	return nil
}

// alignWindows realigns the pools in whose windows buffers lie, which may be named by their
// addresses alone. That is not possible while the call is captured.
func (g planner) alignWindows(ctx context.Context, call driver.Call, registered bool) error {
	at := g.locations(&call)
	if at.send == nil {
		return nil
	}
	sendBytes, recvBytes := call.Spans(len(g.ranks))
	for _, m := range [...]struct {
		pool    *Pool
		address uintptr
		bytes   int64
	}{{at.send.pool, call.Send, sendBytes}, {at.recv.pool, call.Recv, recvBytes}} {
		if !(suspectPool{m.pool}).mustAlign(g.Group, m.address, m.bytes) {
			continue
		}
		if !registered {
			return fmt.Errorf("a pool must be realigned after a fault, which a capture cannot do: call "+
				"Pool.Register before the capture: %w", ErrCapturing)
		}
		if err := m.pool.Register(ctx, g.Group); err != nil {
			return err
		}
	}
	return nil
}

func (g planner) refused(r *request, err error) error {
	return fmt.Errorf("%v on group %s: %w", r.operation, g.id, err)
}

// check refuses what no rank could do: the call itself, and then its memory.
func (g planner) check(p *preparedPlan, call *driver.Call) error {
	if err := call.Validate(len(g.ranks), g.rank); err != nil {
		return err
	}
	send, recv := call.Spans(len(g.ranks))
	residual, weight := call.Norm.Spans()
	return errors.Join(
		g.checkMemory("send", p.send, send, p.dataType),
		g.checkMemory("receive", p.recv, recv, p.dataType),
		g.checkMemory("residual", p.others[0], residual, p.dataType),
		g.checkMemory("weight", p.others[1], weight, p.dataType))
}

func (g planner) checkMemory(what string, m Memory, bytes int64, t DataType) error {
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
	if m.extent&ofHost != 0 && !g.rt.device.Info().Addressable {
		return fmt.Errorf("%s buffer is a Go slice, which the device cannot reach: copy it to a "+
			"buffer with Stream.Copy: %w", what, ErrUnsupported)
	}
	if m.Address()%uintptr(t.Size()) != 0 {
		return invalid("%s buffer at %#x is not aligned to %v", what, m.Address(), t)
	}
	if m.pool == nil {
		return nil
	}
	if m.pool.rt != g.rt {
		return fmt.Errorf("%s buffer of another runtime: %w", what, ErrForeign)
	}
	if _, err := m.pool.blockOf(m); err != nil {
		return fmt.Errorf("%s buffer: %w", what, err)
	}
	return nil
}

// register registers the pools of a request's buffers where this group has not: its first
// collective on their memory. It reports whether all is registered then: nothing is while the
// stream of the call captures, which is so on all ranks, or, by agreement, while another stream of
// some rank does.
func (g planner) register(
	ctx context.Context, p *preparedPlan, s *Stream,
) (registered bool, err error) {
	if !p.operation.UsesWindows() {
		return true, nil
	}
	if s.records() {
		return false, nil
	}
	for _, m := range [...]Memory{p.send, p.recv} {
		if !g.serves(m.pool) || !g.rt.Interop().Pending(m.pool, g.Group, m) {
			continue
		}
		err := m.pool.Register(ctx, g.Group)
		if errors.Is(err, ErrCapturing) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// locations are the windows in which the buffers of a call lie, and where says so, or why both are
// nil.
type locations struct {
	send, recv *windowEntry
	where      string
}

// locations looks up the windows of a call's buffers, once, and gives them to the call.
func (g planner) locations(call *driver.Call) locations {
	table := g.table.Load()
	sendBytes, recvBytes := call.Spans(len(g.ranks))
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

// describe says what must be alike on all ranks: over windows also where the buffers lie. On the
// direct path the ranks that have no windows lie nowhere, so that they differ from those that have.
func (g planner) describe(
	call *driver.Call, at *locations, ticket uint64,
) *agreement.CollectiveCall {
	op := call.Operation
	c := &agreement.CollectiveCall{
		Operation: op.String(), Path: call.Path.String(),
		DataType: call.DataType.String(), Root: -1, Count: uint64(call.Count), Ticket: ticket,
		SendSegment: -1, RecvSegment: -1,
		Capture: call.Recorded.Capture, CaptureCall: call.Recorded.Call,
	}
	if op.Reduces() {
		c.ReduceOp = call.ReduceOp.String()
	}
	if op.Rooted() {
		c.Root = call.Root
	}
	switch {
	case op == driver.Barrier:
		c.DataType, c.Count = "", 0
	case op.PointToPoint():
		// The two ends differ in operation, peer and place, and may.
		c.Operation = "SendRecv"
	case call.Norm != nil:
		// What a norm has in addition, in the words that there are.
		c.DataType = fmt.Sprintf("%s[%d]", c.DataType, call.Norm.Hidden)
		c.ReduceOp = fmt.Sprintf("%s, epsilon %g", c.ReduceOp, call.Norm.Epsilon)
	}
	if call.Path != driver.PathPlain && at.send != nil {
		g.place(c, call, at)
	}
	return c
}

// place says where the buffers of a call lie in windows.
func (g planner) place(c *agreement.CollectiveCall, call *driver.Call, at *locations) {
	send, recv, sendAt, recvAt := at.send, at.recv, call.Send, call.Recv
	// Work in place uses this rank's own part of the larger buffer as the smaller one, so the
	// larger one stands for both.
	switch {
	case !call.InPlace(g.rank):
	case call.Operation == driver.AllGather:
		send, sendAt = recv, recvAt
	default:
		recv, recvAt = send, sendAt
	}
	c.SendPool, c.SendSegment, c.SendOffset = send.position(sendAt)
	c.RecvPool, c.RecvSegment, c.RecvOffset = recv.position(recvAt)
}

// digest condenses a description to the word that ranks compare.
func digest(c *agreement.CollectiveCall) uint64 {
	d := ledger.Empty
	for words := range slices.Chunk(c.Encode(), 16) {
		var two [16]byte
		copy(two[:], words)
		d = ledger.Mix(d, binary.LittleEndian.Uint64(two[:]), binary.LittleEndian.Uint64(two[8:]))
	}
	return d
}

// callOf describes the call in which this rank differs from others, if that is what happened. It
// looks for the windows again: the backend knows only its own.
func (g planner) callOf(cause error) *agreement.CollectiveCall {
	var mismatch *driver.MismatchError
	if !errors.As(cause, &mismatch) {
		return nil
	}
	call, ticket := *mismatch.Call, mismatch.Number
	if mismatch.Launch {
		ticket = 0 // the call has no number that all ranks would know it by
	}
	at := g.locations(&call)
	return g.describe(&call, &at, ticket)
}
