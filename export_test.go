package symmem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"symmem/driver"
	"symmem/internal/alloc"
)

// Map draws the pool's segments, 32 cells wide, with letters for live blocks and dots for other
// memory.
func (p *Pool) Map(w io.Writer) {
	const width = 32
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.segments.list {
		if s == nil {
			continue
		}

		var cells strings.Builder
		live := 0
		for b := range p.core.Blocks(s.ordinal) {
			mark := "."
			if b.State == alloc.Live {
				mark = string(rune('A' + live))
				live++
			}

			cells.WriteString(strings.Repeat(mark, int(b.Size*width/s.bytes)))
		}

		fmt.Fprintf(w, "seg %d |%s|  %d MiB, stream %d\n", s.ordinal, &cells,
			s.bytes>>20, s.stream)
	}
}

// Undelivered counts the events that no call has passed to Options.OnEvent yet.
func Undelivered(rt *Runtime) (count uint64) {
	for _, p := range rt.registry.allPools() {
		p.mu.Lock()
		box := &p.events.outbox
		count += p.ledger.Position() - box.number + uint64(box.end-box.start)
		p.mu.Unlock()
	}

	for _, g := range rt.registry.allGroups() {
		g.state.Lock()
		count += uint64(g.events.outbox.end - g.events.outbox.start)
		g.state.Unlock()
	}

	return count
}

// Releasing counts the mapped segments that a Trim has removed from the pool's free memory.
func Releasing(p *Pool) (count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.segments.mappedSegments() {
		if s.withdrawn {
			count++
		}
	}

	return count
}

// Live lists the live blocks of a pool by segment and offset.
func Live(p *Pool) (blocks []alloc.Block) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.segments.list {
		if s == nil {
			continue
		}

		for b := range p.core.Blocks(s.ordinal) {
			if b.State == alloc.Live {
				blocks = append(blocks, b.Block)
			}
		}
	}

	return blocks
}

// HoldRegistration simulates a registration in another goroutine that lasts until release is
// called.
func HoldRegistration(rt *Runtime) (release func()) {
	_, release = rt.captures.delayCaptures()
	return release
}

// ForgetPlans empties the group's cache of plans.
func ForgetPlans(g *Group) {
	for i := range g.calls.plans {
		g.calls.plans[i].Store(nil)
	}
}

// LaunchPlanned returns a function that launches the group's cached plan without the checks of
// Group. It returns nil unless the cache holds exactly one plan.
func LaunchPlanned(g *Group, s *Stream) func() error {
	var kept driver.Plan
	for i := range g.calls.plans {
		switch p := g.calls.plans[i].Load(); {
		case p == nil:
		case kept != nil:
			return nil
		default:
			kept = p.plan
		}
	}

	if kept == nil {
		return nil
	}

	return func() error { return g.comm.Launch(s.queue, kept) }
}

// ForeignMemory returns memory that belongs to no pool, even if the address lies in a pool.
func ForeignMemory(address uintptr, bytes int64) Memory { return memoryAt(address, bytes) }

// Contains reports whether an address is in the range that p reserves for segments.
func Contains(p *Pool, address uintptr) bool {
	return address-p.segments.arena.Address() < uintptr(p.segments.arenaBytes)
}

// FreeLive frees the live buffers of all open pools.
func FreeLive(rt *Runtime) {
	for _, p := range rt.registry.allPools() {
		FreeAll(p)
	}
}

// FreeAll frees the live buffers of a pool, which may be closed.
func FreeAll(p *Pool) {
	p.mu.Lock()
	var live []Buffer
	for s := range p.heap.countLiveBlocks() {
		for b := range p.core.Blocks(s.ordinal) {
			if b.State == alloc.Live {
				live = append(live, Buffer{Memory{pool: p, handle: b.Handle}})
			}
		}
	}

	p.mu.Unlock()
	for _, b := range live {
		_ = b.Free() // if a stream has failed, Free fails but frees the buffer
	}
}

// Reported returns the error that other ranks get when a rank reports err.
func Reported(err error) error {
	encoded, encoding := json.Marshal(reportOf(err))
	var r report
	decoding := json.Unmarshal(encoded, &r)
	if encoding != nil || decoding != nil || !r.hasRequiredFields() {
		return errors.Join(encoding, decoding)
	}

	return r.toError()
}

// Fail makes a group fail on this rank, as a failed call of the backend does.
func Fail(g *Group, cause error) { g.comm.Abort(cause) }

// HoldConnect makes rt call hold whenever rt's device has joined a group, before the ranks compare
// anything.
func HoldConnect(rt *Runtime, hold func()) {
	rt.device = connectHook{rt.device, func(c driver.Communicator) driver.Communicator {
		hold()
		return c
	}}
}

// HoldFill makes s call hold before each fill, after the memory of the fill has been checked.
func HoldFill(s *Stream, hold func()) { s.queue = hookedStream{Stream: s.queue, beforeFill: hold} }

// HoldSynchronize makes s call hold whenever Synchronize has waited for the stream's work.
func HoldSynchronize(s *Stream, hold func()) {
	s.queue = hookedStream{Stream: s.queue, afterSynchronize: hold}
}

// HoldCopy makes s call hold whenever a copy has been queued.
func HoldCopy(s *Stream, hold func()) { s.queue = hookedStream{Stream: s.queue, afterCopy: hold} }

// hookedStream is a Stream that calls functions of a test before or after its own work.
type hookedStream struct {
	driver.Stream
	beforeFill, afterSynchronize, afterCopy func()
}

func (h hookedStream) Copy(dst, src uintptr, bytes int64) error {
	err := h.Stream.Copy(dst, src, bytes)
	if h.afterCopy != nil {
		h.afterCopy()
	}

	return err
}

func (h hookedStream) Fill(start uintptr, value byte, bytes int64) error {
	if h.beforeFill != nil {
		h.beforeFill()
	}

	return h.Stream.Fill(start, value, bytes)
}

func (h hookedStream) Synchronize(ctx context.Context) error {
	err := h.Stream.Synchronize(ctx)
	if h.afterSynchronize != nil {
		h.afterSynchronize()
	}

	return err
}

// HoldRegister makes the groups that rt joins afterwards call hold whenever the backend has
// registered a segment, before the pool records it.
func HoldRegister(rt *Runtime, hold func()) {
	rt.device = connectHook{rt.device, func(c driver.Communicator) driver.Communicator {
		return registerHook{c, hold}
	}}
}

// HoldArena makes rt call hold whenever NewPool has reserved the addresses of a pool.
func HoldArena(rt *Runtime, hold func()) { rt.device = arenaHook{rt.device, hold} }

type arenaHook struct {
	driver.Device
	hold func()
}

func (d arenaHook) NewArena(bytes int64) (driver.Arena, error) {
	a, err := d.Device.NewArena(bytes)
	d.hold()
	return a, err
}

// connectHook passes each new communicator of a device to joined and uses the result instead.
type connectHook struct {
	driver.Device
	joined func(driver.Communicator) driver.Communicator
}

func (d connectHook) Connect(
	ctx context.Context, group driver.GroupConfig,
) (driver.Communicator, error) {
	c, err := d.Device.Connect(ctx, group)
	return d.joined(c), err
}

// StallStore makes the store of rt stop answering requests of JoinWith, and makes rank 0 count as
// the rank that serves the store.
func StallStore(rt *Runtime) { rt.rankLists.store = stalledStore{rt.rankLists.store} }

type stalledStore struct{ driver.Store }

func (stalledStore) Set(ctx context.Context, _ string, _ []byte) error {
	<-ctx.Done()
	return ctx.Err()
}

func (stalledStore) ServedBy() int { return 0 }

// DecidedError returns the error of a rank that knows own as the cause of a fault, after another
// rank has already decided on cause.
func DecidedError(own, cause error) error { return decodeCause(own, encodeCause(cause)) }

// HoldReports makes the groups that rt joins afterwards call hold before they exchange reports of a
// fault.
func HoldReports(rt *Runtime, hold func()) { HookReports(rt, ReportHooks{Before: hold}) }

// HookControl makes the groups that rt joins afterwards call hook each time before they exchange
// control messages.
func HookControl(rt *Runtime, hook func()) {
	rt.device = connectHook{rt.device, func(c driver.Communicator) driver.Communicator {
		return controlHook{c, hook}
	}}
}

type controlHook struct {
	driver.Communicator
	hook func()
}

func (c controlHook) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if lane == driver.LaneControl {
		c.hook()
	}

	return c.Communicator.Exchange(ctx, lane, payload)
}

// ReportHooks changes how groups exchange reports after a fault.
type ReportHooks struct {
	// Before and After are called before and after each exchange of reports. They may be nil.
	Before, After func()
	// Lost lists world ranks that count as lost if they have not left.
	Lost []int
}

// HookReports applies hooks to the groups that rt joins afterwards.
func HookReports(rt *Runtime, hooks ReportHooks) {
	rt.device = connectHook{rt.device, func(c driver.Communicator) driver.Communicator {
		return reportHook{c, hooks}
	}}
}

type reportHook struct {
	driver.Communicator
	hooks ReportHooks
}

func (c reportHook) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if lane != driver.LaneFault {
		return c.Communicator.Exchange(ctx, lane, payload)
	}

	if c.hooks.Before != nil {
		c.hooks.Before()
	}

	got, err := c.Communicator.Exchange(ctx, lane, payload)
	if c.hooks.After != nil {
		c.hooks.After()
	}

	return got, err
}

func (c reportHook) Departed() (lost, left []int) {
	lost, left = c.Communicator.Departed()
	return append(lost, c.hooks.Lost...), left
}

type registerHook struct {
	driver.Communicator
	hold func()
}

func (c registerHook) Register(
	ctx context.Context, key driver.SegmentKey, memory driver.Segment,
) (driver.Window, error) {
	w, err := c.Communicator.Register(ctx, key, memory)
	c.hold()
	return w, err
}

// ColdPlan plans a call without the group's cache of plans.
func ColdPlan(ctx context.Context, g *Group, c Call) error {
	p, err := g.calls.validatedCopy(collectiveOf(&c))
	if err != nil {
		return err
	}

	return g.calls.prepare(ctx, p, g.rt.stream)
}

// WarmPlan finds the plan of a call in the group's cache. If it is not there, WarmPlan plans the
// call.
func WarmPlan(ctx context.Context, g *Group, c Call) error {
	if p := g.calls.cachedPlan(collectiveOf(&c)); p != nil {
		return nil
	}

	return ColdPlan(ctx, g, c)
}

// collectiveOf returns the collective of a call, without the tag and the splits.
func collectiveOf(c *Call) *collective {
	return &collective{
		operation: c.Operation, dataType: c.Type, reduceOp: c.Op, root: c.Root, count: c.Count,
		send: c.Send, recv: c.Recv, choice: c.Path,
	}
}

// InventoryAround takes the pool's inventory, as a realignment does after its wait for the streams,
// and fails if the pool has changed during that wait. In place of the wait, it calls meanwhile.
func InventoryAround(p *Pool, meanwhile func()) error {
	before := p.uses.mark()
	meanwhile()
	_, err := p.realigner.takeInventory(before)
	return err
}

// CloseDuring makes a pool refuse new calls, as Close does, while a call that has entered the pool
// waits for the pool's lock. It returns the call's error.
func CloseDuring(p *Pool, call func() error) error {
	p.mu.Lock()
	done := make(chan error, 1)
	go func() { done <- call() }()
	due, entered := time.Now().Add(20*time.Second), false
	for ; !entered && time.Now().Before(due); runtime.Gosched() {
		entered = !p.calls.Empty()
	}

	p.calls.Close()
	p.mu.Unlock()
	err := <-done
	p.calls.Open()
	if !entered {
		err = errors.Join(err, errors.New("the call has not entered the pool"))
	}

	return err
}

// CloseBetween makes a norm enter the pools of its input and output, makes these pools refuse new
// calls, and then makes the norm enter the pools of its other buffers.
func CloseBetween(a NormArgs) error {
	c := &collective{send: a.Input, recv: a.Output, norm: &a}
	entered, err := enterPools(c.send.pool, c.recv.pool)
	if err != nil {
		return err
	}
	defer entered.leave(c.send.pool, c.recv.pool)
	c.send.pool.calls.Close()
	defer c.send.pool.calls.Open()
	more, err := c.enterOthers()
	if err == nil {
		more.leave()
	}

	return err
}

// AdoptFake returns an adopted communicator of another library that has the group's ranks and whose
// windows do nothing.
func AdoptFake(g *Group) *AdoptedCommunicator {
	return &AdoptedCommunicator{
		rt: g.rt, group: g, name: "fake", native: fakeCommunicator{g},
		windows: map[*segment]driver.Window{},
	}
}

type fakeCommunicator struct{ group *Group }

func (c fakeCommunicator) Size() int { return c.group.Size() }
func (c fakeCommunicator) Rank() int { return c.group.Rank() }

func (c fakeCommunicator) Exchange(ctx context.Context, payload []byte) ([][]byte, error) {
	return c.group.comm.Exchange(ctx, driver.LaneControl, payload)
}

func (c fakeCommunicator) Register(context.Context, driver.Segment) (driver.Window, error) {
	return futureWindow{}, nil
}

// LockPool locks a pool and returns the function that unlocks it.
func LockPool(p *Pool) (unlock func()) {
	p.mu.Lock()
	return p.mu.Unlock
}

// HoldWindow registers a buffer's segment with an adopted communicator, and adds the communicator
// to the runtime.
func HoldWindow(a *AdoptedCommunicator, b Buffer) {
	segment := b.Segment()
	p := b.memory.pool
	p.mu.Lock()
	s := p.segments.list[segment]
	p.mu.Unlock()
	a.rt.mu.Lock()
	defer a.rt.mu.Unlock()
	a.windows[s] = futureWindow{}
	a.rt.adopted = append(a.rt.adopted, a)
}

// DropAdopted makes the runtime forget an adopted communicator.
func DropAdopted(a *AdoptedCommunicator) { a.Forget() }
