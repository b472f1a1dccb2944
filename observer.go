package symmem

import (
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/ranked"
)

// A pool maps its memory in parts, the segments, and the ranks of a group register segments
// together. A library such as a profiler can observe this: it passes an Observer, whose functions
// symmem then calls for each of these steps.

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
	Segment int // the segment's number in the pool
	Address uintptr
	Bytes   int64
}

// WindowEvent describes a registration of a segment with a group.
type WindowEvent struct {
	SegmentEvent
	Group *Group
}

// observers is the list of a Runtime's Observers. The list is replaced, never modified, so that
// notify needs no lock.
type observers struct {
	mu   *ranked.Mutex[runtimeMu]    // held to replace the list
	list atomic.Pointer[[]*Observer] // nil if the list is empty
}

// add adds an observer. The returned function removes it.
func (o *observers) add(observer *Observer) (remove func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.setList(append(o.copyList(), observer))
	return func() { o.remove(observer) }
}

func (o *observers) remove(observer *Observer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	isRemoved := func(listed *Observer) bool { return listed == observer }
	o.setList(slices.DeleteFunc(o.copyList(), isRemoved))
}

func (o *observers) copyList() []*Observer {
	if list := o.list.Load(); list != nil {
		return slices.Clone(*list)
	}

	return nil
}

// setList replaces the list. The caller must hold mu.
func (o *observers) setList(list []*Observer) {
	if len(list) == 0 {
		o.list.Store(nil)
		return
	}

	o.list.Store(&list)
}

// notify calls a function of each Observer with an event. selectFunction selects the function: for
// example, it returns the Observer's SegmentAlloc.
func notify[E any](rt *Runtime, selectFunction func(*Observer) func(E), event E) {
	list := rt.observers.list.Load()
	if list == nil {
		return
	}

	for _, o := range *list {
		if function := selectFunction(o); function != nil {
			// Guard runs it on a new goroutine, and returns a panic as an error.
			rt.opts.logFault(driver.Guard("a function of an Observer", func() { function(event) }))
		}
	}
}
