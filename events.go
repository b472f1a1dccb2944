package symmem

import (
	"errors"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/alloc"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
	"symmem/trace"
)

// outbox queues the events of a pool or a group, whose lock guards it, for Options.OnEvent. The
// lock is not held during delivery, which only one goroutine does at a time.
type outbox struct {
	opts       *Options
	pool       *ranked.Spin[poolMu]     // nil for a group
	group      *ranked.Spin[groupState] // nil for a pool
	events     []event.Event            // the queue is events[start:end]
	start, end int
	delivering bool
	number     uint64 // of the next event
	// common holds the fields that all events share.
	common event.Event
	// scratch replaces the queue without OnEvent.
	scratch   event.Event
	trace     *trace.Source // nil without a trace, and after disconnect
	siteKnown bool          // the trace has the call site number site
	site      uint32
}

func (o *outbox) log(e *event.Event) {
	if o.trace != nil {
		o.trace.Record(e)
	}
}

func (o *outbox) hasNoHook() bool { return o.opts.OnEvent == nil }

func (o *outbox) lock() {
	if o.pool != nil {
		o.pool.Lock()
	} else {
		o.group.Lock()
	}
}

func (o *outbox) unlock() {
	if o.pool != nil {
		o.pool.Unlock()
	} else {
		o.group.Unlock()
	}
}

func (o *outbox) disconnect() {
	o.lock()
	defer o.unlock()
	o.trace, o.siteKnown = nil, false
}

const initialQueue = 128

// add returns a pointer to a new event, because copying events would double the cost. Fields that
// common does not set may hold values of an older event.
func (o *outbox) add() *event.Event {
	if o.hasNoHook() {
		return &o.scratch
	}

	if o.end == len(o.events) {
		o.grow()
	}

	o.end++
	return &o.events[o.end-1]
}

// grow moves the queue, because the latest batch may still use the old memory.
func (o *outbox) grow() {
	waiting := o.events[o.start:o.end]
	o.events = make([]event.Event, max(initialQueue, 2*len(waiting)))
	o.start, o.end = 0, copy(o.events, waiting)
	for i := o.end; i < len(o.events); i++ {
		o.events[i] = o.common
	}
}

// beginDelivery returns nothing if the queue is empty or another goroutine is delivering.
func (o *outbox) beginDelivery() []event.Event {
	if o.delivering {
		return nil
	}

	o.delivering = true
	return o.nextBatch()
}

// nextBatch ends the delivery if the queue is empty.
func (o *outbox) nextBatch() []event.Event {
	if o.start == o.end {
		o.start, o.end, o.delivering = 0, 0, false
		return nil
	}

	batch := o.events[o.start:o.end]
	o.start = o.end
	return batch
}

func (o *outbox) putBack(rest []event.Event) {
	waiting := append(append([]event.Event(nil), rest...), o.events[o.start:o.end]...)
	o.events, o.start, o.end, o.delivering = waiting, 0, len(waiting), false
}

// deliver also delivers events that are queued meanwhile. The caller must not hold a lock.
func (o *outbox) deliver(batch []event.Event) {
	ranked.AssertUnlocked()
	for batch != nil {
		batch = o.deliverUntilPanic(batch)
	}
}

// deliverUntilPanic logs a panic of OnEvent and then returns the rest of the batch, which is not
// nil.
func (o *outbox) deliverUntilPanic(batch []event.Event) (rest []event.Event) {
	i := 0
	defer func() {
		if i < len(batch) {
			rest = o.handleInterruption(batch[i+1:], recover())
		}
	}()
	for {
		for i = 0; i < len(batch); i++ {
			o.opts.OnEvent(&batch[i])
		}

		o.lock()
		batch = o.nextBatch()
		o.unlock()
		if len(batch) == 0 {
			return nil
		}
	}
}

// handleInterruption handles a panic of OnEvent or, if failure is nil, runtime.Goexit. It returns
// the events that deliver must still deliver. After Goexit, the next delivery continues.
func (o *outbox) handleInterruption(rest []event.Event, failure any) []event.Event {
	if failure != nil {
		o.opts.logFault(driver.PanicError("Options.OnEvent", failure))
		return rest
	}

	o.lock()
	defer o.unlock()
	o.putBack(rest)
	return nil
}

type groupEvents struct {
	rt     *Runtime
	state  *ranked.Spin[groupState]
	outbox outbox // guarded by state
}

// record requires that the caller holds Group.state and has checked that events are recorded.
func (g *groupEvents) record(kind event.Kind) *event.Event {
	queue := &g.outbox
	e := queue.add()
	*e = queue.common
	e.Kind, e.Number = kind, queue.number
	queue.number++
	return e
}

// release unlocks Group.state and delivers events. The caller must not hold another lock.
func (g *groupEvents) release() {
	if g.outbox.hasNoHook() {
		g.state.Unlock()
		return
	}

	batch := g.outbox.beginDelivery()
	g.state.Unlock()
	if len(batch) > 0 {
		g.outbox.deliver(batch)
	}
}

func (g *groupEvents) deliver() {
	if g.rt.recording.isActive() {
		g.state.Lock()
		g.release()
	}
}

// submit requires that the caller has checked that events are recorded.
func (g *groupEvents) submit(c *collective, site uint32, s *Stream) {
	at := g.rt.sites.text(site)
	g.state.Lock()
	if box := &g.outbox; box.hasNoHook() {
		if box.trace != nil {
			box.trace.RecordCollective(box.common.Group, box.number, c.described, uint32(s.number), at)
		}

		box.number++
		g.state.Unlock()
		return
	}

	e := g.record(event.KindCollective)
	e.Call, e.Stream, e.Site = c.described, uint32(s.number), at
	g.outbox.log(e)
	g.release()
}

// submitEntered is for a call that has entered pools, which it leaves if OnEvent calls
// runtime.Goexit.
func (g *groupEvents) submitEntered(p, c *collective, s *Stream, v poolUse) {
	if g.outbox.hasNoHook() {
		g.submit(p, c.site, s)
		return
	}

	returned := false
	defer func() {
		if !returned {
			v.leave(c.send.pool, c.recv.pool)
		}
	}()
	g.submit(p, c.site, s)
	returned = true
}

// recordValue requires that the caller holds Group.state.
func (g *groupEvents) recordValue(v *event.Event) {
	if !g.rt.recording.isActive() {
		return
	}

	e := g.record(v.Kind)
	e.Operation, e.Name, e.Text, e.Site = v.Operation, v.Name, v.Text, v.Site
	e.Value, e.Collectives = v.Value, v.Collectives
	g.outbox.log(e)
}

// recordCause delivers on a goroutine for which Close does not wait, because OnEvent may call
// Close.
func (g *groupEvents) recordCause(cause error) {
	if !g.rt.recording.isActive() || cause == nil || errors.Is(cause, ErrClosed) {
		return
	}

	g.state.Lock()
	e := g.record(event.KindFault)
	e.Text = cause.Error()
	g.outbox.log(e)
	g.state.Unlock()
	go g.deliver()
}

type poolEvents struct {
	// active is set if Alloc and Free must record events or update addresses; guarded by mu.
	active bool
	mu     *ranked.Spin[poolMu]
	rt     *Runtime
	core   *alloc.Core
	ledger *ledger.Ledger
	outbox outbox // guarded by mu
}

// unlock unlocks Pool.mu and delivers events. The caller must not hold another lock.
func (p *poolEvents) unlock() {
	if !p.outbox.hasNoHook() {
		p.unlockAndDeliver()
		return
	}

	p.collectToTrace()
	p.mu.Unlock()
}

func (p *poolEvents) unlockAndDeliver() {
	p.collect()
	batch := p.outbox.beginDelivery()
	p.mu.Unlock()
	if len(batch) > 0 {
		p.outbox.deliver(batch)
	}
}

// unlockAfterOne is unlock, but faster if there is one event and only a trace.
func (p *poolEvents) unlockAfterOne() {
	box := &p.outbox
	number := box.number
	if box.siteKnown && number+1 == p.ledger.Position() {
		if placement := p.ledger.At(number); placement.Site() == box.site {
			box.number = number + 1
			box.trace.RecordPlacement(number, placement)
			p.mu.Unlock()
			return
		}
	}

	p.unlock()
}

// collect queues new events of the ledger. The caller must hold mu.
func (p *poolEvents) collect() {
	box := &p.outbox
	for end := p.ledger.Position(); box.number < end; box.number++ {
		e := box.add()
		site := p.ledger.Load(box.number, e)
		if e.Name != "" {
			e.Name = ""
		}

		if site != 0 || e.Site != "" {
			e.Site = p.rt.sites.text(site)
		}

		box.log(e)
	}
}

// collectToTrace is collect without an OnEvent.
func (p *poolEvents) collectToTrace() {
	box := &p.outbox
	if box.trace == nil {
		return
	}

	number, end := box.number, p.ledger.Position()
	for box.number = end; number < end; number++ {
		placement := p.ledger.At(number)
		if site := placement.Site(); site != box.site || !box.siteKnown {
			p.describe(site)
		}

		box.trace.RecordPlacement(number, placement)
	}
}

func (p *poolEvents) describe(site uint32) {
	box := &p.outbox
	box.siteKnown, box.site = true, site
	box.scratch = box.common
	box.scratch.Site = p.rt.sites.text(site)
	box.trace.Describe(&box.scratch)
}

func (p *poolEvents) setCommon(e *event.Event, site uint32) {
	common := &p.outbox.common
	e.Pool, e.Rank, e.Group = common.Pool, common.Rank, common.Group
	e.Site = p.rt.sites.text(site)
}

// record queues an event outside the history. The caller must hold mu.
func (p *poolEvents) record(e event.Event) {
	if !p.rt.recording.isActive() {
		return
	}

	box := &p.outbox
	if box.hasNoHook() {
		p.collectToTrace()
	} else {
		p.collect()
	}

	e.Number = p.ledger.Position()
	p.setCommon(&e, 0)
	queued := box.add()
	*queued = e
	box.log(queued)
	box.siteKnown = false
}

// recordUse requires that the caller holds mu, as do recordWindow and recordRestart.
func (p *poolEvents) recordUse(handle alloc.Handle, s *Stream) {
	if !p.rt.recording.isActive() {
		return
	}

	if b, err := p.core.LiveBlock(handle); err == nil {
		p.record(event.Event{
			Kind: event.KindUse, Segment: b.Segment, Offset: b.Offset, Size: b.Size,
			Stream: p.core.Number(s.number),
		})
	}
}

func (p *poolEvents) recordWindow(kind event.Kind, s *segment, g *Group) {
	p.record(event.Event{
		Kind: kind, Segment: s.ordinal, Size: s.bytes, Stream: s.stream, Name: g.id,
	})
}

// recordScope requires that the caller holds no lock.
func (p *poolEvents) recordScope(kind event.Kind, g *Group) {
	if !p.rt.recording.isActive() {
		return
	}

	e := event.Event{Kind: kind, Segment: -1}
	if g != nil {
		e.Name = g.id
	}

	p.mu.Lock()
	p.record(e)
	p.unlock()
}

func (p *poolEvents) recordRestart(position uint64) {
	p.outbox.number = position
	p.record(event.Event{Kind: event.KindRestart, Segment: -1})
}

func (p *poolEvents) deliver() {
	p.mu.Lock()
	p.unlock()
}

// deliverAll requires that the caller holds no lock.
func deliverAll(rt *Runtime) {
	if !rt.recording.isActive() {
		return
	}

	for _, p := range rt.registry.allPools() {
		p.events.deliver()
	}

	for _, g := range rt.registry.allGroups() {
		g.events.deliver()
	}
}
