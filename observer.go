package symmem

import (
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/ranked"
)

// Observer notifies a library, such as a profiler, when pools map segments and groups register
// them. Each function runs on a new goroutine, while the pool waits for it and holds its lock. It
// must return quickly and must not call symmem. Panics are logged. Nil functions are skipped.
type Observer struct {
	// SegmentAlloc is called after mapping a segment, and SegmentFree before unmapping it.
	SegmentAlloc, SegmentFree func(SegmentEvent)
	// Register is called after registering a segment with a group. Deregister is called before the
	// segment is deregistered, or after the group has been closed.
	Register, Deregister func(WindowEvent)
}

// SegmentEvent describes a segment, a mapped part of a pool.
type SegmentEvent struct {
	Pool    *Pool
	Segment int // the segment's number in the pool
	Address uintptr
	Bytes   int64
}

// WindowEvent describes a window: the registration of a segment with a group.
type WindowEvent struct {
	SegmentEvent
	Group *Group
}

// observers holds the Observers of a Runtime. The list is copied on write, so that notify needs no
// lock.
type observers struct {
	mu   *ranked.Mutex[runtimeMu]    // held to replace the list
	list atomic.Pointer[[]*Observer] // nil before the first add
}

// add adds an observer. The returned function removes it.
func (o *observers) add(observer *Observer) (remove func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := append(o.copyList(), observer)
	o.list.Store(&list)
	return func() { o.remove(observer) }
}

func (o *observers) remove(observer *Observer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	isRemoved := func(listed *Observer) bool { return listed == observer }
	list := slices.DeleteFunc(o.copyList(), isRemoved)
	o.list.Store(&list)
}

func (o *observers) copyList() []*Observer {
	if list := o.list.Load(); list != nil {
		return slices.Clone(*list)
	}

	return nil
}

// notify calls one function of each Observer, as selected by functionOf, and waits for it.
func notify[E any](rt *Runtime, functionOf func(*Observer) func(E), event E) {
	list := rt.observers.list.Load()
	if list == nil {
		return
	}

	for _, o := range *list {
		if function := functionOf(o); function != nil {
			panicErr := driver.Guard("a function of an Observer", func() { function(event) })
			rt.opts.logFault(panicErr)
		}
	}
}
