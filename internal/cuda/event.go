package cuda

import (
	"time"

	"symmem/internal/dl"
)

// Event marks a point in a stream: CUevent.
type Event uintptr

// EventFlags say what an event can do: CUevent_flags.
type EventFlags uint32

// The flags of EventCreate, which may be added.
const (
	// EventBlockingSync makes EventSynchronize sleep instead of spin.
	EventBlockingSync EventFlags = 1
	// EventDisableTiming makes an event cheaper, and useless for EventElapsedTime.
	EventDisableTiming EventFlags = 2
)

// EventCreate makes an event of the current context. One that was never recorded is done.
func (d *Driver) EventCreate(flags EventFlags) (Event, error) {
	event := dl.NewCell(Event(0))
	err := d.call(eventCreate, event.Address(), uintptr(flags))
	return event.Take(), err
}

// EventRecord marks the point after everything queued on a stream so far.
func (d *Driver) EventRecord(event Event, stream Stream) error {
	return d.call(eventRecord, uintptr(event), uintptr(stream))
}

// EventRecordExternal makes a stream that is captured record an event in each launch of the graph.
// A launch makes the event mark that point at once, for all who wait for it or ask about it.
func (d *Driver) EventRecordExternal(event Event, stream Stream) error {
	const external = 1 // CU_EVENT_RECORD_EXTERNAL
	return d.call(eventRecordWithFlags, uintptr(event), uintptr(stream), external)
}

// EventQuery reports whether the point has been reached. It does not block or allocate. While a
// stream is captured in the global mode it is an ErrCaptureUnsupported and loses the capture,
// unless the thread has exchanged its mode.
func (d *Driver) EventQuery(event Event) (done bool, err error) {
	return d.query(eventQuery, uintptr(event))
}

// EventSynchronize blocks the thread until the point has been reached, without a deadline.
func (d *Driver) EventSynchronize(event Event) error {
	return d.call(eventSynchronize, uintptr(event))
}

// EventDestroy gives an event back. Waits that it is part of still happen.
func (d *Driver) EventDestroy(event Event) error { return d.call(eventDestroy, uintptr(event)) }

// EventElapsedTime is the time between two points, to about half a microsecond. Both events were
// made with timing, and have been reached: ErrNotReady otherwise.
func (d *Driver) EventElapsedTime(start, end Event) (time.Duration, error) {
	milliseconds := dl.NewCell(float32(0))
	err := d.call(eventElapsedTime, milliseconds.Address(), uintptr(start), uintptr(end))
	return time.Duration(float64(milliseconds.Take()) * float64(time.Millisecond)), err
}
