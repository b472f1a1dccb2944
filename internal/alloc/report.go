package alloc

// StreamPoint identifies the event of a deferred block on a stream that used the block. The caller
// records the event when the block is deferred; the owner stream may later have to wait for it.
type StreamPoint struct {
	// Deferral numbers the deferred blocks of a Core from 1 in the order in which they were freed.
	Deferral uint64
	Stream   Stream
}

// Return describes a deferred or parked block that has become free.
type Return struct {
	Block
	Owner uint32 // number of the stream that owned it
}

// reports collects the side effects of the latest call that the caller must handle. The slices are
// reused.
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

// Reported reports whether EventsToRecord, Waits or Returned is not empty after the latest call.
func (r *reports) Reported() bool { return r.filled }

// EventsToRecord lists the events to record after the latest Free or Unpin deferred a block. The
// slice is valid until the next call that changes the Core.
func (r *reports) EventsToRecord() []StreamPoint { return r.toRecord }

// Waits lists events for the stream of the latest Alloc. The stream must wait for them, on the
// device, before it uses a block from this Alloc or a later one. The slice is valid until the next
// change.
func (r *reports) Waits() []StreamPoint { return r.waits }

// Returned lists the deferred and parked blocks that became free during the latest Alloc, Synced or
// Unpin, in the order in which they did. The slice is valid until the next change.
func (r *reports) Returned() []Return { return r.returned }
