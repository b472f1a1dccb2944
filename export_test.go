package symmem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"symmem/driver"
	"symmem/internal/alloc"
)

// Map draws the pool's segments, 32 cells wide: live blocks are letters, all else is a dot.
func (p *Pool) Map(w io.Writer) {
	const width = 32
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.segments {
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
		count += p.ledger.Position() - p.outbox.number + uint64(p.outbox.count-p.outbox.taken)
		p.mu.Unlock()
	}
	for _, g := range rt.registry.allGroups() {
		g.state.Lock()
		count += uint64(g.events.outbox.count - g.events.outbox.taken)
		g.state.Unlock()
	}
	return count
}

// Live lists the live blocks of a pool by segment and offset.
func Live(p *Pool) (blocks []alloc.Block) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.segments {
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

// HoldRegistration acts as a registration of another goroutine that does not end until release is
// called.
func HoldRegistration(rt *Runtime) (release func()) {
	_, release = rt.captures.hold()
	return release
}

// ForgetPlans empties the cache of plans, as other calls do in time.
func ForgetPlans(g *Group) {
	for i := range g.calls.plans {
		g.calls.plans[i].Store(nil)
	}
}

// LaunchPlanned returns a function that launches the plan that the group keeps, below the checks of
// Group. It returns nil unless there is exactly one.
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

// ForeignMemory is memory in no pool, whatever lies at the address.
func ForeignMemory(address uintptr, bytes int64) Memory { return foreignMemory(address, bytes) }

// Contains reports whether an address lies in the range that a pool maps its segments in.
func Contains(p *Pool, address uintptr) bool {
	return address-p.arena.Address() < uintptr(p.space)
}

// FreeLive frees the live buffers of all pools that are open, so that nothing outlives the Runtime.
func FreeLive(rt *Runtime) {
	for _, p := range rt.registry.allPools() {
		FreeAll(p)
	}
}

// FreeAll frees the live buffers of a pool, also of one that is closed.
func FreeAll(p *Pool) {
	p.mu.Lock()
	var live []Buffer
	for s := range p.liveBuffers() {
		for b := range p.core.Blocks(s.ordinal) {
			if b.State == alloc.Live {
				live = append(live, Buffer{Memory{pool: p, handle: b.Handle}})
			}
		}
	}
	p.mu.Unlock()
	for _, b := range live {
		_ = b.Free() // where a stream has failed a use cannot be marked, but the buffer is free
	}
}

// Reported is the error that other ranks get of a rank's.
func Reported(err error) error {
	encoded, encoding := json.Marshal(reportOf(err))
	var r report
	if decoding := json.Unmarshal(encoded, &r); encoding != nil || decoding != nil || !r.valid() {
		return errors.Join(encoding, decoding)
	}
	return r.err()
}

// Fail fails a group on this rank, as a call of the backend does.
func Fail(g *Group, cause error) { g.comm.Abort(cause) }

// HoldConnect has a Runtime call hold whenever its device has joined a group, before it compares
// anything with the others.
func HoldConnect(rt *Runtime, hold func()) {
	rt.device = joining{rt.device, func(c driver.Communicator) driver.Communicator {
		hold()
		return c
	}}
}

// HoldFill has a stream call hold before each fill, which has looked at its memory by then.
func HoldFill(s *Stream, hold func()) { s.queue = held{Stream: s.queue, beforeFill: hold} }

// HoldSynchronize has a stream call hold when Synchronize has waited for it.
func HoldSynchronize(s *Stream, hold func()) {
	s.queue = held{Stream: s.queue, afterSynchronize: hold}
}

// HoldCopy has a stream call hold when a copy is queued.
func HoldCopy(s *Stream, hold func()) { s.queue = held{Stream: s.queue, afterCopy: hold} }

// held is a stream whose calls a test holds.
type held struct {
	driver.Stream
	beforeFill, afterSynchronize, afterCopy func()
}

func (h held) Copy(dst, src uintptr, bytes int64) error {
	err := h.Stream.Copy(dst, src, bytes)
	if h.afterCopy != nil {
		h.afterCopy()
	}
	return err
}

func (h held) Fill(start uintptr, value byte, bytes int64) error {
	if h.beforeFill != nil {
		h.beforeFill()
	}
	return h.Stream.Fill(start, value, bytes)
}

func (h held) Synchronize(ctx context.Context) error {
	err := h.Stream.Synchronize(ctx)
	if h.afterSynchronize != nil {
		h.afterSynchronize()
	}
	return err
}

// HoldRegister has the groups that a Runtime joins from now on call hold whenever the backend has
// registered a segment, before the pool hears of it.
func HoldRegister(rt *Runtime, hold func()) {
	rt.device = joining{rt.device, func(c driver.Communicator) driver.Communicator {
		return registered{c, hold}
	}}
}

// HoldArena has a Runtime call hold whenever a pool that is being made has its addresses.
func HoldArena(rt *Runtime, hold func()) { rt.device = reserving{rt.device, hold} }

type reserving struct {
	driver.Device
	hold func()
}

func (d reserving) NewArena(bytes int64) (driver.Arena, error) {
	a, err := d.Device.NewArena(bytes)
	d.hold()
	return a, err
}

// joining is a device whose communicators are seen by a test first.
type joining struct {
	driver.Device
	joined func(driver.Communicator) driver.Communicator
}

func (d joining) Connect(
	ctx context.Context, group driver.GroupConfig,
) (driver.Communicator, error) {
	c, err := d.Device.Connect(ctx, group)
	return d.joined(c), err
}

// HoldReports has the groups that a Runtime then joins call hold before they exchange reports of a
// fault.
func HoldReports(rt *Runtime, hold func()) {
	rt.device = joining{rt.device, func(c driver.Communicator) driver.Communicator {
		return reporting{c, hold}
	}}
}

type reporting struct {
	driver.Communicator
	hold func()
}

func (c reporting) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if lane == driver.LaneFault {
		c.hold()
	}
	return c.Communicator.Exchange(ctx, lane, payload)
}

type registered struct {
	driver.Communicator
	hold func()
}

func (c registered) Register(
	ctx context.Context, key driver.SegmentKey, memory driver.Segment,
) (driver.Window, error) {
	w, err := c.Communicator.Register(ctx, key, memory)
	c.hold()
	return w, err
}

// ColdPlan plans a call as if the group had kept none of its plans.
func ColdPlan(ctx context.Context, g *Group, c Call) error {
	p, err := g.calls.check(collectiveOf(&c))
	if err != nil {
		return err
	}
	return g.calls.prepare(ctx, p, g.rt.stream)
}

// WarmPlan plans a call, or finds the plan that the group has kept.
func WarmPlan(ctx context.Context, g *Group, c Call) error {
	if p := g.calls.kept(collectiveOf(&c)); p != nil {
		return nil
	}
	return ColdPlan(ctx, g, c)
}

// collectiveOf returns the collective that a call without tag and splits asks for.
func collectiveOf(c *Call) *collective {
	return &collective{
		operation: c.Operation, dataType: c.Type, reduceOp: c.Op, root: c.Root, count: c.Count,
		send: c.Send, recv: c.Recv, choice: c.Path,
	}
}

// StockSince lists what the pool holds, as a realignment does after it has waited for the streams;
// meanwhile stands for calls of other goroutines during the wait.
func StockSince(p *Pool, meanwhile func()) error {
	before := p.mark()
	meanwhile()
	_, err := suspectPool{p}.takeStock(before)
	return err
}
