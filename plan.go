package symmem

import (
	"context"
	"errors"
	"fmt"
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
	norm normOf
	// tag is that of a message, arrived what is called when a Recv has one.
	tag     int
	arrived func(source int)
	splits  *Splits
}

// noExtras is shared by all calls that have no extras.
var noExtras = &extras{}

// wholeRequest is a request with its extras.
type wholeRequest struct {
	request
	extras
}

// planner works out what a call of its group does: whether it is right, in which windows its memory
// lies, what is registered first, and which path it takes. It holds nothing but the group.
type planner struct{ *Group }

// preparedPlan is a request worked out. Engines make the same calls on the same buffers again and
// again, so each group keeps the latest plans; a change of its windows makes them stale.
type preparedPlan struct {
	request wholeRequest
	epoch   uint64
	path    driver.Path
	plan    driver.Plan
	// members are those of the group in the buffers' pools, or nil: what they have not registered
	// is due before the call. A pool that the group joins later makes the plan stale.
	members [2]*membership
	// sendFrees and recvFrees are the counts of frees in the buffers' pools when the buffers were
	// last found alive. While they stand nothing was freed, so nothing needs to be looked up.
	sendFrees, recvFrees atomic.Uint64
	// normFrees are those of a norm's residual and weight.
	normFrees [2]atomic.Uint64
}

// planSlots is the number of plans that a group keeps, a power of two.
const planSlots = 256

// same reports whether a plan answers a request, if sameExtras does, too. Go inlines it.
func (p *preparedPlan) same(r *request, epoch uint64) bool {
	q := &p.request.request
	return p.epoch == epoch && q.send == r.send && q.recv == r.recv && q.count == r.count &&
		q.operation == r.operation && q.dataType == r.dataType && q.reduceOp == r.reduceOp &&
		q.root == r.root && q.choice == r.choice
}

// sameExtras is same of what few operations have.
func (p *preparedPlan) sameExtras(e *extras) bool {
	q := &p.request.extras
	return q.tag == e.tag && e.arrived == nil && sameSplits(q.splits, e.splits) && q.norm == e.norm
}

// owes reports whether memory of the buffers' pools waits to be registered. It takes no lock.
func (p *preparedPlan) owes() bool {
	send, recv := p.members[0], p.members[1]
	return send != nil && send.pending.Load() || recv != send && recv != nil && recv.pending.Load()
}

// fresh tells that nothing was freed in the pools of the buffers, so that alive has nothing to do.
func (p *preparedPlan) fresh() bool {
	send, recv := p.request.send.pool, p.request.recv.pool
	return p.request.operation != driver.AllReduceRMSNorm &&
		(send == nil || send.frees.Load() == p.sendFrees.Load()) &&
		(recv == nil || recv.frees.Load() == p.recvFrees.Load())
}

// alive refuses buffers that were freed since the plan was made. A new plan would refuse them, and
// which plans are kept depends on the rank.
func (p *preparedPlan) alive() error {
	err := p.request.send.stillAlive(&p.sendFrees)
	if err == nil {
		err = p.request.recv.stillAlive(&p.recvFrees)
	}
	if err == nil && p.request.operation == driver.AllReduceRMSNorm {
		err = p.aliveNorm()
	}
	if err != nil {
		return fmt.Errorf("%v: %w", p.request.operation, err)
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
	if r.operation == driver.AllReduceRMSNorm {
		h ^= uint64(e.norm.weight.Address()) >> 5
	}
	return (h * 0x9e3779b97f4a7c15) >> 56 & (planSlots - 1)
}

// plan finds or makes the plan of a request on a stream.
func (g planner) plan(
	ctx context.Context, r *request, e *extras, s *Stream,
) (*preparedPlan, error) {
	slot := &g.plans[r.slot(e)]
	// Which plans are kept depends on addresses, and so on the rank; what is registered must not.
	if p := slot.Load(); p != nil && p.same(r, g.epoch.Load()) &&
		(r.operation <= driver.AllToAll || p.sameExtras(e)) && !p.owes() {
		if p.fresh() {
			return p, nil
		}
		return p, p.alive()
	}
	p, err := g.prepare(ctx, &wholeRequest{*r, *e}, s)
	if err != nil {
		return nil, err
	}
	// A plan that is kept would keep a Go slice, too, and one made during a capture the path
	// without windows of memory that the next call registers.
	if p.request.keepable() && !g.rt.capturing(s) {
		slot.Store(p)
	}
	return p, nil
}

// keepable reports whether a plan of the request may be kept: it would keep a Go slice reachable.
func (r *wholeRequest) keepable() bool {
	if r.arrived != nil {
		return false
	}
	if r.splits != nil {
		return (r.send.extent|r.recv.extent)&ofHost == 0
	}
	return r.count == 0 || r.send.pool != nil || r.recv.pool != nil ||
		(r.send.extent|r.recv.extent)&ofHost == 0
}

// prepare checks a request, registers what it needs and chooses its path.
func (g planner) prepare(
	ctx context.Context, r *wholeRequest, s *Stream,
) (*preparedPlan, error) {
	if err := g.check(r); err != nil {
		return nil, fmt.Errorf("%v on group %s: %w", r.operation, g.id, err)
	}
	if r.operation.PointToPoint() && r.root == g.rank {
		return nil, invalid("%v on group %s: rank %d is its own peer", r.operation, g.id, r.root)
	}
	if err := g.takeOver(ctx, r, s); err != nil {
		return nil, fmt.Errorf("%v on group %s: %w", r.operation, g.id, err)
	}
	if r.splits != nil {
		r.splits = cloneSplits(r.splits)
	}
	epoch := g.epoch.Load()
	call, why := g.route(r)
	if err := g.refuseNorm(&call); err != nil {
		return nil, fmt.Errorf("%v on group %s: %w", r.operation, g.id, err)
	}
	plan, err := g.comm.Prepare(call)
	if err != nil {
		return nil, fmt.Errorf("%w (%v)", g.settle(err), why)
	}
	p := &preparedPlan{request: *r, epoch: epoch, path: call.Path, plan: plan}
	if r.operation != driver.AllReduceRMSNorm && r.operation != driver.AllToAllV {
		p.members = [2]*membership{g.memberOf(r.send.pool), g.memberOf(r.recv.pool)}
	}
	return p, nil
}

// check refuses what no rank could do.
func (g planner) check(r *wholeRequest) error {
	if err := g.Err(); err != nil {
		return err
	}
	if r.operation > driver.AllToAllV {
		return invalid("operation %d", r.operation)
	}
	if err := g.checkMessage(r); err != nil {
		return err
	}
	anywhere := r.operation == driver.Recv && r.root == AnySource
	if r.count < 0 || r.root < 0 && !anywhere || r.root >= len(g.ranks) || !r.dataType.Valid() ||
		r.reduceOp >= driver.ReduceOps {
		return invalid("count %d, type %d, reduction %d, root or peer %d of %d ranks",
			r.count, r.dataType, r.reduceOp, r.root, len(g.ranks))
	}
	if r.count > maxElements {
		return fmt.Errorf("count %d: %w", r.count, ErrOutOfRange)
	}
	if r.operation == driver.AllReduceRMSNorm {
		if err := g.checkNorm(r); err != nil {
			return err
		}
	}
	call := driver.Call{
		Operation: r.operation, DataType: r.dataType, Count: r.count,
		Send: r.send.Address(), Recv: r.recv.Address(), Splits: r.splits,
	}
	send, recv := call.Spans(len(g.ranks))
	return errors.Join(
		g.checkMemory("send", r.send, send, r.dataType),
		g.checkMemory("receive", r.recv, recv, r.dataType),
		g.checkOverlap(&call, uintptr(send), uintptr(recv)))
}

// checkOverlap refuses buffers that overlap, except where NCCL defines work in place.
func (g planner) checkOverlap(call *driver.Call, sendBytes, recvBytes uintptr) error {
	send, recv := call.Send, call.Recv
	if send+sendBytes <= recv || recv+recvBytes <= send || sendBytes == 0 || recvBytes == 0 {
		return nil
	}
	if !g.inPlace(call) {
		return invalid("send and receive buffers overlap, but not as in-place work does")
	}
	return nil
}

// inPlace reports whether a call works in place, as NCCL defines it: on one buffer, or with this
// rank's own part of the larger buffer as the smaller one.
func (g planner) inPlace(call *driver.Call) bool {
	own := uintptr(int64(g.rank) * call.Count * int64(call.DataType.Size()))
	switch call.Operation {
	case driver.AllGather:
		return call.Send == call.Recv+own
	case driver.ReduceScatter:
		return call.Recv == call.Send+own
	default:
		return call.Send == call.Recv
	}
}

// maxElements keeps byte counts of whole groups below 2^63.
const maxElements = 1 << 48

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

// takeOver registers the pools of a request's buffers where this group has not: its first
// collective on their memory. During a capture it leaves that, and the call takes a path that needs
// no windows, on all ranks alike.
func (g planner) takeOver(ctx context.Context, r *wholeRequest, s *Stream) error {
	if g.rt.capturing(s) || r.operation.PointToPoint() || r.operation == driver.AllReduceRMSNorm ||
		r.operation == driver.AllToAllV {
		return nil
	}
	for _, m := range []Memory{r.send, r.recv} {
		p := m.pool
		if p == nil || p.domain == nil || !p.domain.contains(g.Group) {
			continue
		}
		if err := p.Register(ctx, g.Group); err != nil {
			return err
		}
	}
	return nil
}

// bothInWindows is where the buffers of a call lie that has windows.
const bothInWindows = "both buffers lie in windows of the group"

// route chooses the path of a request and resolves it to a call; why says what decided. It is the
// direct path where the backend can take it and the group prefers it, with windows if both buffers
// lie in some, else with none; the window path where both do, the backend can take it, and the
// group prefers it; else the plain path, on which windows play no part. The choice depends only on
// things that ledgers and the group's terms cover, so all ranks choose alike.
func (g planner) route(r *wholeRequest) (call driver.Call, why reason) {
	if r.operation == driver.AllReduceRMSNorm {
		return g.routeNorm(r)
	}
	call = driver.Call{
		Operation: r.operation, DataType: r.dataType, ReduceOp: r.reduceOp, Root: r.root,
		Count: r.count, Send: r.send.Address(), Recv: r.recv.Address(),
		Keep: [2]unsafe.Pointer{r.send.start, r.recv.start},
		Tag:  r.tag, Arrived: r.arrived, Splits: r.splits,
	}
	send, recv, where := g.places(&call)
	windows := where == ""
	if windows {
		call.SendWindow, call.RecvWindow, where = send.window, recv.window, bothInWindows
	}
	call.Path, why = g.prefer(r.choice, &call, windows, where)
	if call.Path == driver.PathPlain {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	if r.splits != nil {
		call.SendWindow = g.sendWindow(&call)
	}
	call.Digest = digest(g.describe(&call, 0))
	return call, why
}

// places finds the windows of a call's buffers, or says why it has none.
func (g planner) places(call *driver.Call) (send, recv *windowPlace, why string) {
	none := &windowPlace{}
	if call.Operation.PointToPoint() || call.Operation == driver.Barrier || call.Count == 0 ||
		call.Operation == driver.AllToAllV {
		return none, none, "the operation works without windows"
	}
	table := g.table.Load()
	sendBytes, recvBytes := call.Spans(len(g.ranks))
	send, ok := table.find(call.Send, sendBytes)
	if !ok {
		return none, none, "the send buffer is in no window of the group"
	}
	recv, ok = table.find(call.Recv, recvBytes)
	if !ok {
		return none, none, "the receive buffer is in no window of the group"
	}
	return send, recv, ""
}

// describe says what must be alike on all ranks: over windows also where the buffers lie. On the
// direct path the ranks that have no windows lie nowhere, so that they differ from those that have.
func (g planner) describe(call *driver.Call, sequence uint64) *agreement.CollectiveCall {
	c := &agreement.CollectiveCall{
		Operation: call.Operation.String(), Path: call.Path.String(),
		DataType: call.DataType.String(), Root: -1, Count: uint64(call.Count), Sequence: sequence,
		SendSegment: -1, RecvSegment: -1,
		Capture: call.Recorded.Capture, Place: call.Recorded.Call,
	}
	switch call.Operation {
	case driver.AllReduce, driver.ReduceScatter, driver.AllReduceRMSNorm:
		c.ReduceOp = call.ReduceOp.String()
	case driver.Reduce:
		c.ReduceOp, c.Root = call.ReduceOp.String(), call.Root
	case driver.Broadcast:
		c.Root = call.Root
	case driver.Barrier:
		c.DataType, c.Count = "", 0
	case driver.AllGather, driver.AllToAll, driver.Send, driver.Recv, driver.AllToAllV:
	}
	if call.Norm != nil {
		describeNorm(c, call.Norm)
		return c
	}
	if call.Operation.PointToPoint() {
		// The two ends differ in operation, peer and place, and may.
		c.Operation = "SendRecv"
		return c
	}
	if call.SendWindow != nil && call.RecvWindow != nil {
		send, recv := g.commonPlaces(call)
		c.SendPool, c.SendSegment, c.SendOffset = g.placeOf(send)
		c.RecvPool, c.RecvSegment, c.RecvOffset = g.placeOf(recv)
	}
	return c
}

// commonPlaces returns the addresses of a call's buffers as they must be alike on all ranks. Work
// in place uses this rank's own part of the larger buffer as the smaller one, so the larger one
// stands for both.
func (g planner) commonPlaces(call *driver.Call) (send, recv uintptr) {
	switch {
	case !g.inPlace(call):
		return call.Send, call.Recv
	case call.Operation == driver.AllGather:
		return call.Recv, call.Recv
	default:
		return call.Send, call.Send
	}
}

// placeOf returns the pool, segment ordinal and offset of an address in a window.
func (g planner) placeOf(address uintptr) (pool uint64, segment int32, offset int64) {
	place, ok := g.table.Load().find(address, 0)
	if !ok {
		return 0, -1, 0
	}
	return place.pool.id, place.segment.key.Ordinal,
		int64(address - uintptr(place.segment.start))
}

// digest condenses a description to the word that ranks compare.
func digest(c *agreement.CollectiveCall) uint64 {
	d := ledger.Empty
	encoded := c.Encode()
	for len(encoded) > 0 {
		var word [2]uint64
		for i := range min(len(encoded), 16) {
			word[i/8] |= uint64(encoded[i]) << (i % 8 * 8)
		}
		d = ledger.Mix(d, word[0], word[1])
		encoded = encoded[min(len(encoded), 16):]
	}
	return d
}

// callOf describes the call in which this rank differs from others, if that is what happened.
func (g planner) callOf(cause error) *agreement.CollectiveCall {
	var mismatch *driver.MismatchError
	if !errors.As(cause, &mismatch) {
		return nil
	}
	return g.describe(mismatch.Call, mismatch.Sequence)
}

// sendWindow is the window that the send buffer of an AllToAllV lies in, or nil.
func (g planner) sendWindow(call *driver.Call) driver.Window {
	bytes, _ := call.Spans(len(g.ranks))
	if place, ok := g.table.Load().find(call.Send, bytes); ok && bytes > 0 {
		return place.window
	}
	return nil
}
