package symmem

import (
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/ranked"
)

// Observer is notified of memory events, in their order. Its functions run on new goroutines, while
// the pool's lock is held. They must return quickly and must not call symmem. If a function panics,
// the panic is logged (see Options.Logger) and the observed operation continues. A nil function is
// skipped.
type Observer struct {
	// SegmentAlloc is called after a segment has been mapped. SegmentFree is called before a
	// segment is unmapped, after all its windows have been deregistered.
	SegmentAlloc, SegmentFree func(SegmentEvent)
	// Register is called after a segment has been registered with a group. Deregister is called
	// before the segment is deregistered or, if the group has been closed, afterwards.
	Register, Deregister func(WindowEvent)
}

// SegmentEvent describes a segment.
type SegmentEvent struct {
	Pool    *Pool
	Segment int
	Address uintptr
	Bytes   int64
}

// WindowEvent describes a registration of a segment with a group.
type WindowEvent struct {
	SegmentEvent
	Group *Group
}

// observers holds the observers of a Runtime. The list is replaced rather than modified, so that it
// can be read without a lock.
type observers struct {
	mu   *ranked.Mutex[runtimeMu] // serializes changes to the list
	list atomic.Pointer[[]*Observer]
}

func (o *observers) all() []*Observer {
	if list := o.list.Load(); list != nil {
		return slices.Clone(*list)
	}
	return nil
}

func (o *observers) add(added *Observer) (remove func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(append(o.all(), added))
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.set(slices.DeleteFunc(o.all(), func(have *Observer) bool { return have == added }))
	}
}

func (o *observers) set(list []*Observer) {
	if len(list) == 0 {
		o.list.Store(nil)
		return
	}
	o.list.Store(&list)
}

func notify[E any](rt *Runtime, which func(*Observer) func(E), event E) {
	list := rt.observers.list.Load()
	if list == nil {
		return
	}
	for _, o := range *list {
		if f := which(o); f != nil {
			rt.opts.logFault(driver.Guard("a function of an Observer", func() { f(event) }))
		}
	}
}
