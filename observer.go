package symmem

// Observer is told what happens to memory. Its functions are called in the order of events, by the
// thread that causes them, with the pool locked: they return soon and do not call into symmem. A
// nil function is skipped.
type Observer struct {
	// SegmentAlloc is called after a segment was mapped, SegmentFree before it is unmapped, when
	// all its windows are deregistered.
	SegmentAlloc, SegmentFree func(SegmentEvent)
	// Register is called after a segment was registered with a group, Deregister before the
	// registration is taken back, or, where the group was closed, after it has ended.
	Register, Deregister func(WindowEvent)
	// Alloc is called after a block was handed out, Free when its owner gives it back.
	Alloc, Free func(BlockEvent)
}

// SegmentEvent is about a segment.
type SegmentEvent struct {
	Pool    *Pool
	Segment int
	Address uintptr
	Bytes   int64
}

// WindowEvent is about a segment and a group.
type WindowEvent struct {
	SegmentEvent
	Group *Group
}

// BlockEvent is about a block. It says where the block lies, because asking the Buffer would wait
// for the pool, which is locked.
type BlockEvent struct {
	Buffer  Buffer
	Segment int
	Offset  int64
	Bytes   int64
}

// Observe adds an observer and returns what removes it. A new observer is not told of what is
// there already; Pool.Segments lists that.
func (i Interop) Observe(o Observer) (remove func()) {
	rt := i.rt
	added := &o
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.setObservers(append(rt.observers(), added))
	return func() {
		rt.mu.Lock()
		defer rt.mu.Unlock()
		var rest []*Observer
		for _, have := range rt.observers() {
			if have != added {
				rest = append(rest, have)
			}
		}
		rt.setObservers(rest)
	}
}

// observers returns a copy of the list. rt.mu is held.
func (rt *Runtime) observers() []*Observer {
	if list := rt.observe.Load(); list != nil {
		return append([]*Observer(nil), *list...)
	}
	return nil
}

func (rt *Runtime) setObservers(list []*Observer) {
	if len(list) == 0 {
		rt.observe.Store(nil)
		return
	}
	rt.observe.Store(&list)
}

// observed reports whether anybody listens. Hot paths ask before they make an event.
func (rt *Runtime) observed() bool { return rt.observe.Load() != nil }

// tell calls one function of every observer.
func tell[E any](rt *Runtime, which func(*Observer) func(E), event E) {
	list := rt.observe.Load()
	if list == nil {
		return
	}
	for _, o := range *list {
		if f := which(o); f != nil {
			f(event)
		}
	}
}
