package symmem

import (
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/ranked"
)

// Observer receives memory events in their order. Functions run on a new goroutine with the pool's
// lock held, so they must return quickly and must not call symmem. Panics are logged. Nil functions
// are skipped.
type Observer struct {
	// SegmentAlloc is called after mapping a segment, and SegmentFree before unmapping it.
	SegmentAlloc, SegmentFree func(SegmentEvent)
	// Register is called after registering a segment with a group. Deregister is called before its
	// deregistration or, if the group has been closed, afterwards.
	Register, Deregister func(WindowEvent)
}

// SegmentEvent describes a segment.
type SegmentEvent struct {
	Pool    *Pool
	Segment int
	Address uintptr
	Bytes   int64
}

// WindowEvent describes a registration with a group.
type WindowEvent struct {
	SegmentEvent
	Group *Group
}

// observers replaces its list, so readers need no lock.
type observers struct {
	mu   *ranked.Mutex[runtimeMu] // held to change the list
	list atomic.Pointer[[]*Observer]
}

func (o *observers) copyList() []*Observer {
	if list := o.list.Load(); list != nil {
		return slices.Clone(*list)
	}

	return nil
}

func (o *observers) add(observer *Observer) (remove func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.setList(append(o.copyList(), observer))
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.setList(slices.DeleteFunc(o.copyList(), func(o *Observer) bool { return o == observer }))
	}
}

func (o *observers) setList(list []*Observer) {
	if len(list) == 0 {
		o.list.Store(nil)
		return
	}

	o.list.Store(&list)
}

func notify[E any](rt *Runtime, selectFunction func(*Observer) func(E), event E) {
	list := rt.observers.list.Load()
	if list == nil {
		return
	}

	for _, o := range *list {
		if function := selectFunction(o); function != nil {
			rt.opts.logFault(driver.Guard("a function of an Observer", func() { function(event) }))
		}
	}
}
