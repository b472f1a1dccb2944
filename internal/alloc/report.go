package alloc

// StreamPoint identifies an event that marks the end of a deferred block's use on one stream. The
// caller records the event when the block is deferred. The stream that owns the block may have to
// wait for the event later.
type StreamPoint struct {
	// Deferral is the number of the deferral. A Core numbers its deferred blocks from 1 in the
	// order in which they were freed.
	Deferral uint64
	Stream   Stream
}

// Return describes a deferred or parked block that has become free.
type Return struct {
	Block
	Owner uint32 // number of the stream that owned the block
}

// reports lists the side effects of the latest call that the caller must handle. The next call
// reuses the slices.
type reports struct {
	filled   bool
	toRecord []StreamPoint
	waits    []StreamPoint
	returned []Return
	trimmed  []Segment
}

func (r *reports) clear() {
	r.filled = false
	r.toRecord, r.waits = r.toRecord[:0], r.waits[:0]
	r.returned, r.trimmed = r.returned[:0], r.trimmed[:0]
}

// Reported reports whether EventsToRecord, Waits or Returned has entries after the latest call.
func (r *reports) Reported() bool { return r.filled }

// EventsToRecord lists the events that the caller must record because the latest Free or Unpin
// deferred a block. The slice is valid until the next call that changes the Core.
func (r *reports) EventsToRecord() []StreamPoint { return r.toRecord }

// Waits lists the events for which the stream of the latest Alloc must wait, on the device,
// before it uses a block from this Alloc or a later one. The slice is valid until the next call
// that changes the Core.
func (r *reports) Waits() []StreamPoint { return r.waits }

// Returned lists the deferred and parked blocks that became free during the latest Alloc, Synced or
// Unpin, in the order in which they did. The slice is valid until the next call that changes the
// Core.
func (r *reports) Returned() []Return { return r.returned }
