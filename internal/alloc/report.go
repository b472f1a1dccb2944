package alloc

// StreamPoint identifies an event that marks the end of a deferred block's use on one stream.
type StreamPoint struct {
	// Deferral numbers the deferred blocks from 1 in the order in which they were freed.
	Deferral uint64
	Stream   Stream
}

// Return describes a deferred or parked block that has become free.
type Return struct {
	Block
	Owner uint32 // stream that owned the block; see Number
}

type reports struct {
	hasEntries bool
	toRecord   []StreamPoint
	waits      []StreamPoint
	returned   []Return
	trimmed    []Segment
}

func (r *reports) clear() {
	r.hasEntries = false
	r.toRecord, r.waits = r.toRecord[:0], r.waits[:0]
	r.returned, r.trimmed = r.returned[:0], r.trimmed[:0]
}

// Reported reports whether EventsToRecord, Waits or Returned has entries for the latest call.
func (r *reports) Reported() bool { return r.hasEntries }

// EventsToRecord lists the events that the caller must record because the latest call deferred a
// block. The slice is valid until the next call that changes the Core.
func (r *reports) EventsToRecord() []StreamPoint { return r.toRecord }

// Waits lists the events for which the stream of the latest Alloc must wait, on the device, before
// it uses a block from this Alloc or a later one. The slice is valid like that of EventsToRecord.
func (r *reports) Waits() []StreamPoint { return r.waits }

// Returned lists the deferred and parked blocks that became free during the latest call, in this
// order. The slice is valid like that of EventsToRecord.
func (r *reports) Returned() []Return { return r.returned }
