package symmem

import (
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/ranked"
)

// Observer receives memory events in their order. Each function runs on a new goroutine with the
// pool's lock held, so it must return quickly and must not call symmem. If a function panics, the
// panic is logged and the operation continues. Nil functions are skipped.
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

// WindowEvent describes the registration of a segment with a group.
type WindowEvent struct {
	SegmentEvent
	Group *Group
}

// observers holds the observers of a Runtime. The list is replaced, so readers need no lock.
type observers struct {
	mu   *ranked.Mutex[runtimeMu] // for changes of the list
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
